"""Layers whose output is added to a stream: found and watched while a network runs.

What such a layer gives, behind its BatchNorm if it has one, is one part of a sum; the other part is what has come
so far. Additions are seen as functions of torch, so that any forward will do, in place or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.hooks import Reached, removed_after, until_reached
from prunerecover.model.paths import get_module
from prunerecover.recovery.batchnorm import batchnorms

ADDITIONS = frozenset(
    getattr(owner, name)
    for owner, names in ((torch, ("add",)), (Tensor, ("add", "add_", "__add__", "__radd__", "__iadd__")))
    for name in names
)
NO_NORM = ""


class _Additions(TorchFunctionMode):
    """Tells of tensors that something is added to; sums of another shape, by broadcasting, do not count.

    Args:
        wanted: Whether a tensor is one to be told of.
        note: Gets it, and a copy of the sum.
        read: Gets it where another function computes something of it.
    """

    def __init__(
        self,
        wanted: Callable[[Tensor], bool],
        note: Callable[[Tensor, Tensor], None],
        read: Callable[[Tensor], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self.wanted, self.note, self.read = wanted, note, read

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch, and tell of it if it adds."""
        adds = func in ADDITIONS and not kwargs and len(args) == 2 and all(isinstance(each, Tensor) for each in args)
        told = [own for own in args if isinstance(own, Tensor) and self.wanted(own)]
        found = func(*args, **(kwargs or {}))  # perhaps in place
        for own in told:
            if adds and own.shape == found.shape:
                self.note(own, found.clone())
            elif isinstance(found, Tensor) and found is not own:
                self.read(own)
        return found


class _Given(NamedTuple):
    """What a layer gave, behind the norm if there is one, and how often it had been written to by then."""

    output: Tensor
    layer: str
    norm: str
    version: int | None


def branch_ends(network: nn.Module, layers: Iterable[str], inputs: ModelInputs) -> dict[str, str]:
    """Return which layers end a branch, with the path of the BatchNorm behind each, or `NO_NORM`.

    Left out is what is added more than once, what something changes in place before, such as an activation, what
    shares its BatchNorm with others, and the beginning of a stream, which others read, too. Only a plain BatchNorm
    over the layer's outputs counts as one behind it: not one that holds an activation, nor one over tokens.

    Args:
        network: In evaluation mode.
        layers: Paths of those that may.
        inputs: One batch on the network's device, for one forward pass. Of one sample only if all are: what has the
            shape of a sum does not follow from it otherwise.
    """
    given: dict[int, _Given] = {}  # by identity; tensors are kept, so that none takes another's
    found: dict[str, str] = {}
    elsewhere: set[tuple[str, str]] = set()  # layers whose output others read, with the norm behind which they do
    times: Counter[str] = Counter()  # of additions and of norms

    def gave(path: str) -> Callable[..., None]:
        return lambda _, __, output: given.update({id(output): _Given(output, path, NO_NORM, _version(output))})

    def normed(path: str) -> Callable[..., None]:
        def note(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if args and is_given(args[0]) and over_outputs(given[id(args[0])].layer, args[0]):
                given[id(output)] = _Given(output, given[id(args[0])].layer, path, _version(output))
            times[path] += 1

        return note

    def added(own: Tensor, _: Tensor) -> None:
        made = given[id(own)]
        found[made.layer] = made.norm
        times[made.layer] += 1

    def over_outputs(layer: str, x: Tensor) -> bool:
        return isinstance(get_module(network, layer), nn.Conv2d) or x.ndim == 2

    def read(own: Tensor) -> None:
        elsewhere.add((given[id(own)].layer, given[id(own)].norm))

    def is_given(tensor: Tensor) -> bool:
        return id(tensor) in given and given[id(tensor)].version == _version(tensor) is not None

    norms = {path: norm for path, norm in batchnorms(network).items() if norm.affine and _is_plain(norm)}
    handles = [get_module(network, path).register_forward_hook(gave(path)) for path in layers]
    handles += [module.register_forward_hook(normed(path)) for path, module in norms.items()]
    with removed_after(*handles), _Additions(is_given, added, read):
        call(network, inputs)
    return {
        path: norm
        for path, norm in found.items()
        if times[path] == 1 and (norm == NO_NORM or times[norm] == 1) and (path, norm) not in elsewhere
    }


def at_end(
    network: nn.Module, path: str, norm: str, inputs: ModelInputs, run: Callable[[ModelInputs], Any] | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Return what enters a layer that ends a branch, and the sum that what it gives is part of; the pass stops there.

    Nothing, if this batch does not reach the sum.

    Args:
        network: In evaluation mode.
        path: Of the layer, which a pass calls once.
        norm: Path of the BatchNorm behind it, or `NO_NORM`.
        inputs: One batch on the network's device.
        run: Runs the network on it; None: as a call does.
    """
    seen: dict[str, Tensor] = {}

    def note(_: Tensor, total: Tensor) -> None:
        seen["total"] = total
        raise Reached

    handles = [
        get_module(network, path).register_forward_hook(
            lambda _, args, kwargs, __: seen.update(x=(args[0] if args else kwargs["input"]).clone()), with_kwargs=True
        ),
        get_module(network, norm or path).register_forward_hook(lambda _, __, output: seen.update(y=output)),
    ]
    with until_reached(*handles), _Additions(lambda tensor: tensor is seen.get("y"), note):
        call(network, inputs) if run is None else run(inputs)
    return [(seen["x"], seen["total"])] if "total" in seen else []


def _is_plain(norm: nn.Module) -> bool:
    """Whether a BatchNorm does nothing else; that of timm may hold an activation."""
    return isinstance(getattr(norm, "act", None), nn.Identity | None)


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version
