"""Description of a group for torch-pruning: layers, their channels in the group, and the unit of each channel.

Where a unit has several channels (a head, a flattened map, a group of a grouped convolution), torch-pruning counts the
channels singly, along the root layer of the group: every other layer maps its channels to channels of the root. The
root is the convolution or linear layer with the fewest channels per unit, or among several the layer that names the
group: in an attention with fused queries, keys and values the root is the output projection, as in torch-pruning's
pruner.

Not covered: routed experts, and groups made or read by modules unknown to torch-pruning, such as the transposed linear
layers of GPT-2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from prunerecover.importance.measuring.unit_slices import tensor_named
from prunerecover.model.paths import get_module, parent_path
from prunerecover.plan.groups import Group, Slice
from prunerecover.plan.kinds import plural


@dataclass(frozen=True)
class Layer:
    """A layer of a group, and its channels in the group.

    Attributes:
        path: Path of the module, or of a parameter outside the modules that torch-pruning knows.
        module: Module or parameter at the path.
        prune: torch-pruning's function to remove channels of the layer; tells outputs from inputs.
        part: Slice of the group in a tensor of the layer, along its channels.
        dim: Dimension of the channels for a parameter, -1 for a module.
    """

    path: str
    module: nn.Module | Parameter
    prune: Any
    part: Slice
    dim: int = -1

    @property
    def per_unit(self) -> int:
        """Channels per unit."""
        return len(self.part.offsets) * self.part.span

    def places(self, size: int) -> tuple[list[int], list[int], list[int]]:
        """Return, for all of the group's channels in ascending order, their index, unit and place within the unit."""
        units = torch.arange(size).repeat_interleave(self.part.span).repeat(len(self.part.offsets))
        within = torch.arange(self.per_unit).view(-1, 1, self.part.span).expand(-1, size, -1).flatten()
        first = torch.tensor(self.part.offsets).repeat_interleave(size * self.part.span)
        indices = first + torch.arange(size * self.part.span).repeat(len(self.part.offsets))
        order = indices.argsort()
        return indices[order].tolist(), units[order].tolist(), within[order].tolist()


def dependency_group(model: nn.Module, group: Group) -> tuple[Any, Tensor]:
    """Return torch-pruning's description of a group, and the unit of each channel of its root, `(channels,)`.

    Args:
        model: Network of the group.
        group: Group of channels, heads or neurons.

    Raises:
        ValueError: If modules unknown to torch-pruning make or read the group.
    """
    from torch_pruning import dependency

    layers = _root_first(group, _layers(model, group))
    root = layers[0]
    indices, units, within = root.places(group.size)
    place = {pair: i for i, pair in enumerate(zip(units, within, strict=True))}
    source = dependency.Node(root.module, None, root.path)
    found = dependency.Group()
    for number, layer in enumerate(layers):
        target = source if layer is root else dependency.Node(layer.module, None, layer.path)
        target.pruning_dim = layer.dim
        own, unit_of, within = layer.places(group.size)
        found.add_dep(dependency.Dependency(root.prune, layer.prune, source, target), own)
        found[number].root_idxs = [place[u, w % root.per_unit] for u, w in zip(unit_of, within, strict=True)]
    return found, torch.tensor(units)


def _layers(model: nn.Module, group: Group) -> list[Layer]:
    """Return the group's layers in order of its slices, each once per direction."""
    found: dict[tuple[str, Any], Layer] = {}
    for part in group.slices:
        layer = _layer(model, part)
        if layer is not None:
            found.setdefault((layer.path, layer.prune), layer)
        elif not part.makes:
            raise ValueError(_unknown(model, group, part))
    layers = list(found.values())
    if not any(_is_product(layer) and layer.part.makes for layer in layers):
        raise ValueError(_unknown(model, group, group.slices[0]))
    return layers


def _layer(model: nn.Module, part: Slice) -> Layer | None:
    """Return the layer of a slice, or the parameter for an unknown module; None without either."""
    from torch_pruning import ops
    from torch_pruning.pruner import function

    path = parent_path(part.tensor)
    module, tensor = get_module(model, path), tensor_named(model, part.tensor)
    kind = ops.module2type(module)
    if kind in _known():
        reads = isinstance(module, ops.TORCH_LINEAR | ops.TORCH_CONV) and part.tensor.endswith("weight")
        outputs = int(reads and isinstance(module, ops.TORCH_CONV) and module.transposed)
        pruner = function.PrunerBox[kind]
        prune = pruner.prune_in_channels if reads and part.dim != outputs else pruner.prune_out_channels
        return Layer(path, module, prune, part)
    if isinstance(tensor, Parameter) and part.makes:
        return Layer(part.tensor, tensor, function.prune_parameter_out_channels, part, part.dim)
    return None


def _known() -> set[Any]:
    """Return the types of modules from which torch-pruning removes channels by outputs and inputs."""
    from torch_pruning.ops import OPTYPE

    convolutions = {OPTYPE.CONV, OPTYPE.DEPTHWISE_CONV, OPTYPE.LINEAR, OPTYPE.EMBED}
    return convolutions | {OPTYPE.BN, OPTYPE.LN, OPTYPE.GN, OPTYPE.IN, OPTYPE.PRELU}


def _is_product(layer: Layer) -> bool:
    from torch_pruning import ops

    return ops.module2type(layer.module) in (ops.OPTYPE.CONV, ops.OPTYPE.LINEAR)


def _root_first(group: Group, layers: list[Layer]) -> list[Layer]:
    products = [layer for layer in layers if _is_product(layer)]
    root = min(products, key=lambda layer: (layer.per_unit, not group.name.startswith(layer.path)))
    return [root, *(layer for layer in layers if layer is not root)]


def _unknown(model: nn.Module, group: Group, part: Slice) -> str:
    owner = type(get_module(model, parent_path(part.tensor))).__name__
    return (
        f"Expected convolutions and linear layers to make and read the {plural(group.kind)} of '{group.name}' for a "
        f"score of torch-pruning, but '{part.tensor}' belongs to a {owner}, which it does not know. Leave the group "
        f"out, ignore=['{group.name}'], or score it by an importance such as 'gate_taylor'."
    )
