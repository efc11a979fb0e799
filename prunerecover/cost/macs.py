"""Count of the multiply-accumulate operations (MACs) of one forward pass, in all and per module.

Matrix products and convolutions count everywhere: in linears, in attention (scores and weighted values, in any kernel)
and in fused experts. One MAC is one multiplication with its addition, half of a FLOP count of
`torch.utils.flop_counter`. Attention counts in full, also where a causal mask hides half.

Not counted, as is usual: element-wise operations, normalisation, softmax, pooling, table look-ups; nor the fused
kernels of recurrent layers (LSTM, GRU), which PyTorch does not take apart.

A model on the meta device is counted without weights and without computing values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from prunerecover.model.batches import ModelInputs, as_inputs, call
from prunerecover.model.evaluation import device_of, evaluating, uncompiled
from prunerecover.model.paths import parent_path, unwrap

Formula = Callable[..., int]  # FLOPs from the shapes of an operation's arguments
ATTENTION_KERNELS = (
    "flash_attention",
    "flash_attention_for_cpu",
    "efficient_attention",
    "cudnn_attention",
    "fused_attention_overrideable",
)


def count_macs(model: nn.Module, example_inputs: Any) -> int:
    """Count the MACs of one forward pass on `example_inputs`, for the whole batch.

    Args:
        model: Any module, also on the meta device; bit-identical afterwards.
        example_inputs: Batch: a tensor, a tuple that begins with the input, a mapping of keyword arguments, or
            `ModelInputs`.

    >>> count_macs(nn.Linear(3, 5), torch.zeros(2, 3))
    30
    """
    counter = _counted(unwrap(model), example_inputs, _NoTracker())
    return counter.get_total_flops() // 2


def macs_by_module(model: nn.Module, example_inputs: Any) -> dict[str, int]:
    """Count MACs per module, for the whole batch.

    Each count includes the modules inside. Paths are canonical (wrappers stripped), and the network itself is `""`.
    Modules without a product of their own count zero; a container never called, for example `nn.ModuleList`, counts the
    sum of its children. A module called twice counts twice.

    >>> macs_by_module(nn.Sequential(nn.Linear(3, 5), nn.ReLU()), torch.zeros(2, 3))
    {'': 30, '0': 30, '1': 0}
    """
    network = unwrap(model)
    counter = _counted(network, example_inputs, _ForwardTracker())
    counted = {path: sum(flops.values()) // 2 for path, flops in counter.get_flop_counts().items()}
    return _by_canonical_path(network, counted)


def _counted(network: nn.Module, example_inputs: Any, tracker: ModuleTracker) -> FlopCounterMode:
    """Run a network once under PyTorch's counter."""
    counter = FlopCounterMode(display=False, custom_mapping=_formulas())
    counter.mod_tracker = tracker
    with uncompiled(), evaluating(network), counter:
        if device_of(network).type == "meta":
            _call_without_values(network, as_inputs(example_inputs))
        else:
            call(network, as_inputs(example_inputs).to(device_of(network)))
    return counter


class _NoTracker(ModuleTracker):
    """Tracker without modules, which saves a quarter of the time; all operations count as one module's."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class _ForwardTracker(ModuleTracker):
    """Tracker of running modules, in the forward pass only.

    PyTorch also hooks the backward pass to every module's inputs. Without gradients, the hook fails if an input is a
    view of a parameter, for example a class token.
    """

    def _fw_pre_hook(self, mod: nn.Module, input: Any) -> None:
        super()._fw_pre_hook(mod, ())

    def _fw_post_hook(self, mod: nn.Module, input: Any, output: Any) -> None:
        super()._fw_post_hook(mod, (), ())


def _call_without_values(network: nn.Module, inputs: ModelInputs) -> None:
    """Call a network on the meta device with tensors of shapes alone, which claim to be on the CPU.

    Some forward passes ask the device for properties unknown to the meta device, for example the type under autocast.
    Padding masks are left out, because transformers would read the values; the counts stay equal, as padded positions
    are computed, too.
    """
    kwargs = {name: value for name, value in inputs.kwargs.items() if name != "attention_mask"}
    with FakeTensorMode(allow_non_fake_inputs=True):
        args, kwargs = tree_map(_without_values, (inputs.args, kwargs))
        state = {name: _without_values(t) for name, t in chain(network.named_parameters(), network.named_buffers())}
        functional_call(network, state, args, kwargs)


def _without_values(leaf: Any) -> Any:
    return torch.empty_like(leaf, device="cpu") if isinstance(leaf, Tensor) else leaf


def _by_canonical_path(network: nn.Module, counted: dict[str, int]) -> dict[str, int]:
    """Convert the counter's paths, which begin with the class of the network, to canonical paths."""
    root = type(network).__name__
    canonical = {module: path for path, module in network.named_modules()}
    macs: dict[str, int] = {"": counted.get("Global", 0)}
    for path, module in network.named_modules(remove_duplicate=False):
        name = canonical[module]
        macs[name] = max(macs.get(name, 0), counted.get(f"{root}.{path}" if path else root, 0))
    for path in sorted(macs, key=lambda p: -p.count(".")):
        if path and not macs[path]:
            macs[path] = sum(n for child, n in macs.items() if child and parent_path(child) == path)
    return {path: macs[path] for path in canonical.values()}


def _formulas() -> dict[Any, Formula]:
    """Return formulas missing in some supported PyTorch version: attention on CPU, grouped heads, fused experts."""
    formulas: dict[str, Formula] = {f"_scaled_dot_product_{kernel}": _attention_flops for kernel in ATTENTION_KERNELS}
    formulas["_grouped_mm"] = _grouped_product_flops
    return {getattr(torch.ops.aten, name): f for name, f in formulas.items() if hasattr(torch.ops.aten, name)}


def _attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Scores `(B, H, N, D) x (B, H, M, D)` and values `(B, H, N, M) x (B, H, M, E)`; H is the number of query heads."""
    batch, heads, n, d = query
    return 2 * batch * heads * n * key[-2] * (d + value[-1])


def _grouped_product_flops(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """Product per group; ragged operands (2-D) hold all groups along a common dimension."""
    groups = a[0] if len(a) == 3 and len(b) == 3 else 1
    return 2 * groups * a[-2] * a[-1] * b[-1]
