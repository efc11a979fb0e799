"""Networks with named tensors as inputs and outputs, for export, whatever the form of the original call.

Tensors inside lists and mappings of the inputs are inputs, too; all further values there are fixed. Outputs are the
tensors of the first level, without deeper tensors such as caches and features of layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

from prunerecover.model.batches import ModelInputs, call
from prunerecover.refusal import Refusal

FALLBACK = "images"  # name of an input of images called x in forward
# Products of routed experts: by an operation of transformers' own, or PyTorch's.
OWN, PLAIN = "grouped_mm", "batched_mm"


class NamedNetwork(nn.Module):
    """A network that takes tensors in order, and returns a mapping of computed tensors.

    Args:
        network: Network in evaluation mode.
        inputs: Example.

    Attributes:
        tensors: Tensors of the example, in order.
        names: Names of the tensors in a file.
    """

    def __init__(self, network: nn.Module, inputs: ModelInputs) -> None:
        super().__init__()
        self.network = network
        kwargs = dict(inputs.kwargs)
        if getattr(getattr(network, "config", None), "use_cache", False):
            kwargs["use_cache"] = False  # decoders' caches for the next token are no output
        leaves, self.form = tree_flatten_with_path((inputs.args, kwargs))
        self.leaves = [None if isinstance(leaf, Tensor) else leaf for _, leaf in leaves]
        self.places = [place for place, (_, leaf) in enumerate(leaves) if isinstance(leaf, Tensor)]
        # A program keeps its example: a view would bring its whole batch, and runtimes refuse channels_last.
        self.tensors: list[Tensor] = [
            leaves[place][1].clone(memory_format=torch.contiguous_format) for place in self.places
        ]
        self.names = _readable([_name(leaves[place][0], network) for place in self.places], self.tensors)

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """Return the outputs of the network, by name."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self.form)
        output = call(self.network, ModelInputs(args, kwargs))
        found: dict[str, Tensor] = {}
        for name, value in named_outputs(self.network, output).items():
            again = any(value is other for other in (*tensors, *found.values()))
            found[name] = value.clone() if again else value  # a file has a single name for a tensor
        return found


def named_outputs(network: nn.Module, output: Any) -> dict[str, Tensor]:
    """Return the tensors of an output, named by key or by order.

    Args:
        network: Network of the output, for the message.
        output: Output in the form of the network.

    Raises:
        Refusal: If the first level holds no tensor.
    """
    if isinstance(output, Tensor):
        return {"output": output}
    found: Mapping[str, Any] = {}
    if isinstance(output, Mapping):
        found = output
    elif isinstance(output, Sequence):
        found = {f"output_{number}": value for number, value in enumerate(output)}
    tensors = {str(name): value for name, value in found.items() if isinstance(value, Tensor)}
    if not tensors:
        raise Refusal(
            "a network that gives a tensor, a sequence of tensors or a mapping with tensors",
            f"{type(network).__name__} gives {_described(output)}",
            "Export a module around it whose forward returns the tensors that you need.",
        )
    return tensors


def names_beside(inputs: Sequence[str], outputs: Iterable[str]) -> list[str]:
    """Return names of outputs, each distinct from all inputs: a shared name gets the prefix `output_`.

    >>> names_beside(["sample", "timestep"], ["sample", "logits"])
    ['output_sample', 'logits']
    """
    taken = {*inputs, *(outputs := list(outputs))}
    return [_new(f"output_{name}", taken) if name in inputs else name for name in outputs]


@contextmanager
def plain_products(network: nn.Module) -> Iterator[None]:
    """Compute the products of transformers' routed experts by PyTorch operations, inside a `with` block.

    Args:
        network: Network with the same results inside the block; restored afterwards.
    """
    configs = {id(config): config for module in network.modules() if (config := getattr(module, "config", None))}
    changed = [config for config in configs.values() if getattr(config, "_experts_implementation", None) == OWN]
    try:
        for config in changed:
            config._experts_implementation = PLAIN
        yield
    finally:
        for config in changed:
            config._experts_implementation = OWN


def _name(path: tuple[Any, ...], network: nn.Module) -> str:
    """Return the name of an input: the name of the argument, and the path inside the argument."""
    kind, first, *inside = (key.idx if hasattr(key, "idx") else key.key for key in path)
    if kind == 0:
        first = _argument(network, first)
    return ".".join(map(str, (first, *inside)))


def _argument(network: nn.Module, number: int) -> str:
    """Return the name of a positional argument."""
    parameters = [*inspect.signature(network.forward).parameters.values()]
    variadic = next((n for n, p in enumerate(parameters) if p.kind is p.VAR_POSITIONAL), len(parameters))
    return parameters[number].name if number < variadic else f"input_{number}"


def _readable(names: Sequence[str], tensors: Sequence[Tensor]) -> list[str]:
    """Return the names in a file; a single input of images with a one-letter name is called "images"."""
    images = [number for number, tensor in enumerate(tensors) if tensor.ndim == 4]
    if len(images) == 1 and len(names[images[0]]) == 1 and FALLBACK not in names:
        return [FALLBACK if number in images else name for number, name in enumerate(names)]
    return list(names)


def _new(name: str, taken: set[str]) -> str:
    """Return a free name, and mark the name as taken."""
    while name in taken:
        name = f"{name}_"
    taken.add(name)
    return name


def _described(output: Any) -> str:
    kind = type(output).__name__
    if isinstance(output, Mapping):
        output = list(output.values())
    inside = sorted({type(value).__name__ for value in output}) if isinstance(output, Sequence) else []
    return f"{kind} of {', '.join(inside)}" if inside else kind
