"""Checks of a model before planning: structure beyond the reach of surgery is refused by name.

Not covered: a forward pass's use of values, and quantised weights of libraries except PyTorch, bitsandbytes and
torchao.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.ao.nn.quantized import FloatFunctional, FXFloatFunctional
from torch.nn.parameter import is_lazy

from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.hashing import is_quantised, stored_parts
from prunerecover.model.key_values import misnumbered
from prunerecover.refusal import Refusal

NOT_IN_FILES = (
    ", and safetensors files hold plain tensors alone. Save before quantising, and quantise what is loaded from the "
    "file; a plan's file is saved in either case."
)
NAMED = 3  # modules in a message
MASK, WEIGHT_NORM = "a mask of torch.nn.utils.prune", "weight_norm"
REFUSED = (MASK, WEIGHT_NORM)  # hooks of both overwrite new parameters with a plain tensor
PREPARED = tuple(  # modules of PyTorch's and torchao's quantisers beside weights and between layers
    f"{package}.{name}"
    for package in ("torch.ao.quantization", "torchao.quantization.pt2e", "torchao.quantization.qat")
    for name in ("fake_quantize", "observer")
)
FLOAT = (FloatFunctional, FXFloatFunctional)  # sums in networks prepared for quantisation, not yet quantised
QUANTISED = ("torch.ao.nn.quantized", "torch.nn.quantized", "torch.ao.nn.intrinsic.quantized", "bitsandbytes")


@dataclass(frozen=True)
class ComputedWeight:
    """A weight that a module computes from other tensors, or rounds: out of surgery's reach.

    Attributes:
        name: Name of the weight, in the module.
        how: Source of the weight.
        way_out: First step of the user, a sentence without a full stop.
    """

    name: str
    how: str
    way_out: str


def computed_weights(module: nn.Module) -> list[ComputedWeight]:
    """Return the weights that a module, apart from its children, computes from other tensors.

    >>> linear = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    >>> [(weight.name, weight.how) for weight in computed_weights(linear)]
    [('weight', 'a parametrization (_WeightNorm)')]
    """
    if type(module).__module__.startswith(PREPARED):
        return []

    def undone(function: str, name: str) -> str:
        return f"Make the weights plain first: torch.nn.utils.{function}(module, '{name}')"

    found = []
    for name, functions in getattr(module, "parametrizations", {}).items():
        way_out = undone("parametrize.remove_parametrizations", name)
        found.append(ComputedWeight(name, f"a parametrization ({type(functions[0]).__name__})", way_out))
    for name in module._parameters:
        stem, _, last = name.rpartition("_")
        if last == "orig" and f"{stem}_mask" in module._buffers:
            found.append(ComputedWeight(stem, MASK, undone("prune.remove", stem)))
        elif last == "orig" and stem not in module._parameters:
            found.append(ComputedWeight(stem, "spectral_norm", undone("remove_spectral_norm", stem)))
        elif last == "g" and f"{stem}_v" in module._parameters and stem not in module._parameters:
            found.append(ComputedWeight(stem, WEIGHT_NORM, undone("remove_weight_norm", stem)))
    quantiser = next((one for one in module.children() if type(one).__module__.startswith(PREPARED)), None)
    if quantiser is not None:
        how = f"a quantiser of {type(quantiser).__module__.partition('.quantization')[0]} ({type(quantiser).__name__})"
        way_out = "Prune the network first, and prepare what is left for quantisation"
        found.append(ComputedWeight("weight", how, way_out))
    return found


def computed_in(model: nn.Module) -> tuple[str, str]:
    """Return the sources and places of computed weights in a network, and the user's first steps, as sentences.

    Both texts are empty if no weight is computed.

    Args:
        model: Any network.

    >>> computed_in(nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(2, 2))))[0]
    "a parametrization (_Orthogonal) at '0'"
    """
    paths: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, module in model.named_modules():
        for weight in computed_weights(module):
            paths[weight.how, weight.way_out].append(path)
    causes = [f"{how} at {listed(found)}" for (how, _), found in paths.items()]
    return "; ".join(causes), " ".join(dict.fromkeys(f"{way_out}." for _, way_out in paths))


def listed(paths: Sequence[str]) -> str:
    """Return the first paths of a list for a message, and the number of further paths.

    >>> listed(["a", "", "b", "c", "d"])
    "'a', the model itself, 'b' and 2 more"
    """
    more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    return ", ".join(f"'{path}'" if path else "the model itself" for path in paths[:NAMED]) + more


def check_call(model: nn.Module, inputs: ModelInputs, argument: str) -> None:
    """Raise ValueError if the model does not take the inputs, with the failure as the cause.

    Args:
        model: Network without wrappers, in evaluation mode.
        inputs: Inputs on the model's device.
        argument: Name of the argument with the inputs.
    """
    with called_with(model, argument, inputs):
        call(model, inputs)


@contextmanager
def called_with(model: nn.Module, argument: str, inputs: ModelInputs) -> Iterator[None]:
    """Explain errors of the model's forward pass inside a `with` block as ValueError.

    Errors for lack of memory and the package's own refusals pass unchanged.

    Args:
        model: Called model.
        argument: Name of the argument with the inputs, for the message.
        inputs: Batch or part of a batch.
    """
    try:
        yield
    except (torch.OutOfMemoryError, Refusal):
        raise
    except Exception as error:
        raise ValueError(
            f"Expected {argument} that {type(model).__name__} can be called with, but its forward pass raised "
            f"{type(error).__name__}: {error}. Pass batches as your loader gives them (a tensor, a tuple whose first "
            "element is the input, or a mapping of keyword arguments), in the shape and dtype of the model's "
            f"inputs, and load the model's weights first.{inputs.undivided()}{misnumbered(model)}"
        ) from error


def check_network(model: nn.Module) -> None:
    """Raise ValueError for a LightningModule without a forward pass of its own.

    Args:
        model: Network without wrappers.
    """
    if hasattr(model, "load_from_checkpoint") and "forward" not in type(model).__dict__:
        raise ValueError(
            f"Expected a network, but got the LightningModule {type(model).__name__}, which has no forward pass of its "
            "own. Pass the network that it holds."
        )


def check_watchable(model: nn.Module) -> None:
    """Raise ValueError if a module is TorchScript; the code of all other modules can be watched in a run."""
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise Refusal(
                "modules of Python",
                f"'{path or type(model).__name__}' is TorchScript, whose code cannot be watched",
                "Prune the module that it was made of, and script what is left.",
            )


def check_cuttable(model: nn.Module) -> None:
    """Raise ValueError unless the code can be watched, and weights exist, in floating point and of known sizes.

    Args:
        model: Network without wrappers.
    """
    check_watchable(model)
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise Refusal("weights that have sizes", f"'{name}' is of a lazy module", "Call the model on a batch.")
    for path, module in model.named_modules():
        if type(module).__module__.startswith(QUANTISED) and not isinstance(module, FLOAT):
            raise Refusal(
                "weights in floating point",
                f"'{path or type(model).__name__}' is quantised ({type(module).__name__})",
                "Prune first, and quantise what is left.",
            )
    if next(model.parameters(), None) is None:
        holds = "modules without any" if list(model.children()) else "nothing"
        raise Refusal(
            "a network with parameters",
            f"{type(model).__name__} has none: it holds {holds}",
            "Pass the inner network, built and with weights.",
        )


def check_plannable(model: nn.Module) -> None:
    """Raise ValueError unless the model has finite values in plain parameters; the model is not changed.

    Args:
        model: Network without wrappers.
    """
    check_cuttable(model)
    for path, module in model.named_modules():
        for weight in computed_weights(module):
            if weight.how in REFUSED:
                cause = f"'{path or type(model).__name__}' computes '{weight.name}' by {weight.how}"
                raise Refusal("weights that are parameters", cause, f"{weight.way_out}.")
    empty = next((name for name, p in model.named_parameters() if p.is_meta), None)
    if empty is not None:
        raise Refusal(
            "a model with values to plan for",
            f"'{empty}' is on the meta device",
            "Load its weights first: model.to_empty(device=...), then load_state_dict.",
        )
    wrong = next((name for name, p in model.named_parameters() if not is_finite(p)), None)
    if wrong is not None:
        raise ValueError(
            f"Expected finite weights to plan with, but '{wrong}' holds NaN or infinite values. Load a checkpoint from "
            "before the training diverged."
        )


def warn_unless_finite(tensors: nn.Module | Mapping[str, Tensor], where: object) -> None:
    """Warn of NaN or infinite weights on saving or loading, with the first names.

    Args:
        tensors: Model, or tensors by name.
        where: File or folder, for the message.
    """
    held = tensors.state_dict(keep_vars=True) if isinstance(tensors, nn.Module) else tensors
    wrong = [name for name, value in held.items() if isinstance(value, Tensor) and not is_finite(value)]
    if wrong:
        warnings.warn(
            f"Expected finite weights in {where}, but {', '.join(wrong[:3])}"
            f"{f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''} hold{'s' * (len(wrong) == 1)} NaN or infinite "
            "values, and so will their results. Go back to a checkpoint from before the training "
            "diverged, and train with a lower learning rate; if weights are in float16, in float32 or bfloat16.",
            stacklevel=3,
        )


def is_finite(tensor: Tensor) -> bool:
    """Return whether all values of a tensor are finite; minus infinity is allowed outside parameters, as in masks.

    Args:
        tensor: Tensor of any kind; a tensor on the meta device has no values.
    """
    for part in stored_parts(tensor.detach()):
        if part.is_meta or part.is_nested or not (part.is_floating_point() or part.is_complex()) or not part.numel():
            continue
        part = part.to_local() if hasattr(part, "to_local") else part  # the rank's part of a sharded tensor
        part = part.to_dense() if part.layout != torch.strided else part
        part = torch.view_as_real(part.resolve_conj()) if part.is_complex() else part
        low, high = (part.float() if part.itemsize == 1 else part).aminmax()  # both NaN if any value is; no copy
        if not high < torch.inf or (isinstance(tensor, nn.Parameter) and not low > -torch.inf):
            return False
    return True


def check_unquantised(model: nn.Module, purpose: str, reason: str) -> None:
    """Raise ValueError for a quantised weight of torchao; such weights allow only the removal of whole units.

    Args:
        model: Network without wrappers.
        purpose: Purpose of plain weights, for the message: "to narrow".
        reason: Reason against quantised weights, and the way out; sentences after "is quantised".
    """
    found = next(((name, p) for name, p in model.named_parameters() if is_quantised(p)), None)
    if found is not None:
        raise ValueError(
            f"Expected plain weights {purpose}, but '{found[0]}' is quantised ({type(found[1]).__name__}){reason}"
        )


def check_differentiable(model: nn.Module) -> None:
    """Raise ValueError for weights from `torch.inference_mode` or quantised weights: they take no gradients."""
    check_unquantised(
        model, "that take gradients", ". Prune first and quantise what is left, or remove units by another importance."
    )
    made_there = next((name for name, p in model.named_parameters() if p.is_inference()), None)
    if made_there is not None:
        raise Refusal(
            "weights that gradients flow through",
            f"'{made_there}' was made within torch.inference_mode",
            "Build or load the model outside of it; planning itself may be called within.",
        )


def is_differentiable(model: nn.Module) -> bool:
    """Return whether gradients flow through the weights: none is quantised, or from `torch.inference_mode`."""
    return not any(is_quantised(p) or p.is_inference() for p in model.parameters())
