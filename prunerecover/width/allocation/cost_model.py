"""Cost of a narrowed model in closed form: MACs and parameters as functions of the number of kept units.

A weight of shape `a x b x ...` costs one parameter per entry, and one MAC per entry and position of its use, also in
grouped and depthwise convolutions. Positions do not change when dimensions narrow: both costs are products of widths,
and each width is linear in the kept units. Products without weights (attention's scores and values) are linear in the
heads. The rest is constant. The numbers equal those of the narrowed model.

Routed experts are the exception: a token visits the same number of experts for any number of experts, so the expert
dimension of a fused weight counts for the parameters alone.

Not covered: weights of a module in use at different numbers of positions, as in an `nn.MultiheadAttention` for
cross-attention.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from torch import Tensor, nn

from prunerecover.cost.macs import macs_by_module
from prunerecover.display.progress import progress
from prunerecover.importance.measuring.unit_slices import check_names, tensor_named
from prunerecover.model.batches import ModelInputs, as_inputs
from prunerecover.model.checks import computed_in
from prunerecover.model.narrow.freeing import uncalled_weights
from prunerecover.model.paths import parent_path, unwrap
from prunerecover.plan.groups import Group, Slice
from prunerecover.width.groups.experts import find_experts


class Cost(NamedTuple):
    """MACs of one sample, and parameters."""

    macs: int
    params: int


@dataclass(frozen=True)
class NarrowingDim:
    """A dimension of a tensor that narrows.

    Attributes:
        full: Length with all units.
        per_unit: Entries per unit, by group.
        for_macs: Whether MACs shrink with the dimension.
    """

    full: int
    per_unit: dict[str, int]
    for_macs: bool = True

    def left(self, gone: Mapping[str, int]) -> int:
        """Return the length without the given number of units of each group."""
        return self.full - sum(entries * gone.get(name, 0) for name, entries in self.per_unit.items())


@dataclass(frozen=True)
class NarrowingParameter:
    """A parameter that narrows.

    Attributes:
        entries: Entries per combination of indices along the narrowing dimensions.
        positions: MACs per entry; a fraction where experts share the tokens.
        widths: Dimensions that narrow.
    """

    entries: int
    positions: int | Fraction
    widths: tuple[NarrowingDim, ...]

    def cost(self, gone: Mapping[str, int]) -> tuple[int | Fraction, int]:
        """Return the MACs and entries without the given number of units of each group."""
        params = self.entries
        macs = self.entries * self.positions
        for width in self.widths:
            left = width.left(gone)
            params *= left
            macs *= left if width.for_macs else width.full
        return macs, params


@dataclass(frozen=True)
class OutOfReach:
    """Parts of a network without removable units, for the message about a budget beyond the units of width.

    Attributes:
        computed: Source of weights computed from other tensors; empty if there is none.
        made_plain: Steps to take first, as sentences.
        experts: Whether there are routed experts.
        may_go: Whether routed experts are among the units.
        stays: Function that returns the obstacles for further units, as clauses.
    """

    computed: str = ""
    made_plain: str = ""
    experts: bool = False
    may_go: bool = False
    stays: Callable[[], Sequence[str]] = field(default=tuple, compare=False)

    @classmethod
    def of(cls, model: nn.Module, groups: Sequence[Group], stays: Callable[[], Sequence[str]]) -> OutOfReach:
        """Examine a network with some groups to narrow."""
        may_go = any(group.kind == "expert" for group in groups)
        return cls(*computed_in(model), may_go or bool(find_experts(model)), may_go, stays)

    def reasons(self, cost: str) -> list[tuple[str, str]]:
        """Return the reasons for the limit on a cost, as clauses, each with the way to save more, a sentence."""
        found = [(f"Weights stay that are computed ({self.computed})", self.made_plain)] if self.computed else []
        if self.experts and cost == "macs":
            cause = "Routed experts save no MACs, for a token visits as many as before"
            found.append((cause, 'To save memory, let experts go: kinds="expert" with Budget(params=...).'))
        elif self.experts and not self.may_go:
            found.append(("Routed experts stay", 'Let experts go, too: add "expert" to kinds.'))
        if kept := self.stays():
            way_out = "Let whole blocks, attentions or layers go, too: plan_pruning, or plan_depth before."
            found.append((f"What keeps other units: {'; '.join(kept)}", way_out))
        return found


@dataclass(frozen=True)
class CostModel:
    """Cost of a model for every number of units; made by `cost_model`.

    Attributes:
        full: Cost of the model in its present state.
        sizes: Units per group.
        linear: Cost of each unit of a group, independent of other groups.
        blocks: Tensors with entries shared between the group's units and other units, per group.
        out_of_reach: Costs outside all groups.
    """

    full: Cost
    sizes: dict[str, int]
    linear: dict[str, tuple[int | Fraction, int]]
    blocks: dict[str, tuple[NarrowingParameter, ...]]
    out_of_reach: OutOfReach = OutOfReach()

    def total(self, kept: Mapping[str, int]) -> Cost:
        """Return the cost with the given number of kept units per group; unnamed groups keep all.

        Raises:
            ValueError: If a group is unknown, or the number exceeds its size.
        """
        for name, count in kept.items():
            if not 0 <= count <= self.sizes.get(name, -1):
                raise ValueError(
                    f"Expected every group to keep between 0 and all of its {self.sizes.get(name, 0)} units, but got "
                    f"{count} for '{name}'. The cost model knows the groups that it was made for."
                )
        gone = {name: self.sizes[name] - count for name, count in kept.items()}
        macs: int | Fraction = self.full.macs
        params = self.full.params
        for name, n in gone.items():
            macs -= self.linear[name][0] * n
            params -= self.linear[name][1] * n
        for block in {id(block): block for name in gone for block in self.blocks[name]}.values():
            before, after = block.cost({}), block.cost(gone)
            macs -= before[0] - after[0]
            params -= before[1] - after[1]
        return Cost(int(macs), params)

    def saving(self, name: str, gone: Mapping[str, int], units: int = 1) -> Cost:
        """Return the saving of `units` more units of a group after the removal of `gone` units of each group.

        Only the group's own tensors are considered. The saving of a unit never grows as other units go.

        Args:
            name: Name of the group.
            gone: Number of removed units, by group name.
            units: Number of further units to remove.
        """
        macs, params = (cost * units for cost in self.linear[name])
        after = {**gone, name: gone.get(name, 0) + units}
        for block in self.blocks[name]:
            macs_before, params_before = block.cost(gone)
            macs_after, params_after = block.cost(after)
            macs += macs_before - macs_after
            params += params_before - params_after
        return Cost(int(macs), int(params))


def cost_model(
    model: nn.Module, groups: Sequence[Group], example_inputs: Any, stays: Callable[[], Sequence[str]] = tuple
) -> CostModel:
    """Return the cost model of some groups of a network.

    Args:
        model: Module of any kind, also on the meta device; bit-identical afterwards.
        groups: Groups of different names.
        example_inputs: Batch with MACs to share out among its samples; None leaves MACs 0.
        stays: Function that returns the obstacles for further units, as clauses.

    Raises:
        ValueError: If two groups share a name, or a group names entries beyond a tensor.
    """
    check_names(groups)
    network = unwrap(model)
    with progress("measuring what units cost"):
        macs = _macs_of_a_sample(network, None if example_inputs is None else as_inputs(example_inputs))
    positions = _positions(network, groups, macs)
    linear: dict[str, tuple[int | Fraction, int]] = {group.name: (group.products, 0) for group in groups}
    blocks: dict[str, list[NarrowingParameter]] = {group.name: [] for group in groups}
    for tensor, widths in _narrowing(network, groups):
        entries = tensor.numel() // math.prod(width.full for width in widths)
        block = NarrowingParameter(entries, positions.get(id(tensor), 0), widths)
        if len(widths) > 1:
            for name in dict.fromkeys(name for width in widths for name in width.per_unit):
                blocks[name].append(block)
            continue
        for name, per_unit in widths[0].per_unit.items():
            unit_macs = entries * per_unit * block.positions if widths[0].for_macs else 0
            linear[name] = (linear[name][0] + unit_macs, linear[name][1] + entries * per_unit)
    return CostModel(
        full=Cost(macs[""], sum(p.numel() for p in network.parameters())),
        sizes={group.name: group.size for group in groups},
        linear=linear,
        blocks={name: tuple(found) for name, found in blocks.items()},
        out_of_reach=OutOfReach.of(network, groups, stays),
    )


def _macs_of_a_sample(network: nn.Module, inputs: ModelInputs | None) -> Mapping[str, int]:
    if inputs is None:
        return defaultdict(int)
    return {path: macs // inputs.n_samples for path, macs in macs_by_module(network, inputs).items()}


def _positions(network: nn.Module, groups: Sequence[Group], macs: Mapping[str, int]) -> dict[int, int | Fraction]:
    """Return MACs per entry by the identity of each matrix, added up for a matrix shared by several modules."""
    path_of = {module: path for path, module in network.named_modules()}
    products: dict[str, int] = defaultdict(int)  # products of groups with slices in a module's own tensors, by module
    for group in groups:
        for path in dict.fromkeys(parent_path(part.tensor) for part in group.slices):
            products[path] += group.products * group.size
    found: dict[int, int | Fraction] = defaultdict(int)
    for path, module in network.named_modules():
        matrices = [p for name, p in module._parameters.items() if p is not None and p.ndim > 1 and "bias" not in name]
        matrices += uncalled_weights(module)
        children = list(module.children())
        own = macs[path] - sum(macs[path_of[child]] for child in children)
        own -= products[path] if children else 0  # a single layer has no products without weights
        if matrices and own > 0:
            per_entry = Fraction(own, sum(p.numel() for p in matrices))
            for matrix in matrices:
                found[id(matrix)] += int(per_entry) if per_entry.denominator == 1 else per_entry
    return found


def _narrowing(network: nn.Module, groups: Sequence[Group]) -> list[tuple[Tensor, tuple[NarrowingDim, ...]]]:
    """Return the parameters narrowed by groups, with their narrowing dimensions; tied parameters once."""
    parameters = {id(p) for p in network.parameters()}
    tensors: dict[int, Tensor] = {}
    parts: dict[int, dict[int, dict[str, set[tuple[int, int]]]]] = {}  # tensor, dim, group: offsets and spans
    experts: set[tuple[int, int]] = set()
    for group in groups:
        for part in group.slices:
            tensor = tensor_named(network, part.tensor)
            if id(tensor) not in parameters:
                continue
            dim = _checked_dim(tensor, part, group)
            tensors[id(tensor)] = tensor
            by_group = parts.setdefault(id(tensor), {}).setdefault(dim, {})
            by_group.setdefault(group.name, set()).update((offset, part.span) for offset in part.offsets)
            if group.kind == "expert" and tensor.ndim > 2:
                experts.add((id(tensor), dim))
    return [
        (tensors[key], tuple(_width(tensors[key], dim, found, (key, dim) in experts) for dim, found in dims.items()))
        for key, dims in parts.items()
    ]


def _width(tensor: Tensor, dim: int, parts: Mapping[str, set[tuple[int, int]]], routed: bool) -> NarrowingDim:
    per_unit = {name: sum(span for _, span in found) for name, found in parts.items()}
    return NarrowingDim(tensor.shape[dim], per_unit, for_macs=not routed)


def _checked_dim(tensor: Tensor, part: Slice, group: Group) -> int:
    length = tensor.shape[part.dim] if -tensor.ndim <= part.dim < tensor.ndim else 0
    needed = max(part.offsets) + group.size * part.span
    if needed > length:
        raise ValueError(
            f"Expected '{part.tensor}' to have at least {needed} entries along dimension {part.dim} for the "
            f"{group.size} units of '{group.name}', but got shape {tuple(tensor.shape)}. "
            "Were the groups found in another model?"
        )
    return part.dim % tensor.ndim
