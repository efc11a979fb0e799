"""Sites of width: groups with what they hold, and what makes units that are in none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from torch import nn

from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.graph.regions import find_attentions
from prunerecover.model.batches import ModelInputs
from prunerecover.model.copies import share_copy
from prunerecover.model.paths import is_within, parent_path
from prunerecover.plan.groups import Group
from prunerecover.plan.kinds import plural
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.width.allocation.cost_model import cost_model
from prunerecover.width.groups.counted import FIXED
from prunerecover.width.groups.found import FoundGroups


def with_costs(
    model: nn.Module, found: FoundGroups, example: ModelInputs | None, blocks: Sequence[str]
) -> tuple[Group, ...]:
    """Return the groups with the parameters and MACs that all of their units hold, and the blocks that they are in.

    Args:
        model: Unwrapped.
        found: In it.
        example: One batch; MACs are those of all its samples. None leaves them 0.
        blocks: Paths of all blocks.
    """
    rewritten = share_copy(model)
    apply_edits(rewritten, found.edits)
    costs = cost_model(rewritten, found.groups, example)
    samples = 0 if example is None else example.n_samples
    groups = []
    for group in found.groups:
        macs, params = costs.saving(group.name, {}, group.size)
        made = [part.tensor for part in group.slices if part.makes]
        block = next((path for path in blocks if all(is_within(tensor, path) for tensor in made)), "")
        groups.append(replace(group, params=params, macs=macs * samples, block=block))
    return tuple(groups)


def refused_groups(found: FoundGroups, kinds: Sequence[str], graph: ComputationGraph | None) -> dict[str, str]:
    """Return why units stay, and what to do about it, by the module that makes them.

    Args:
        found: Groups of these kinds.
        kinds: That were asked for.
        graph: Of the network, which shows its attentions.
    """
    reasons: dict[str, list[str]] = {}
    for name, reason in _reasons(found, kinds, graph):
        if reason not in reasons.setdefault(name, []):
            reasons[name].append(reason)
    return {name: ". ".join(own) for name, own in reasons.items()}


def _reasons(found: FoundGroups, kinds: Sequence[str], graph: ComputationGraph | None) -> Iterator[tuple[str, str]]:
    for one in found.counted:
        yield one.group.name, f"its {plural(one.group.kind)} are counted by {one.operation}; {FIXED}"
    for together in found.linked:
        names = ", ".join(f"'{group.name}'" for group in together)
        for group in together:
            yield (
                group.name,
                f"its {plural(group.kind)} lie in equal parts of one tensor ({names}); remove whole layers",
            )
    named = {group.name for group in found.named}
    for kind in kinds:
        made = {*named, *_makers(group for group in found.groups if group.kind == kind)}
        explained = set()
        for stay in found.stays((kind,)):
            if stay.name not in made and stay.name not in explained:
                explained.add(stay.name)
                yield stay.name, f"its {plural(kind)} stay by {stay.by}; {stay.way_out}"
        for attention in find_attentions(graph) if kind == "head" and graph is not None else ():
            inside = [name for name in (*made, *explained) if is_within(name, attention.module)]
            if not inside:
                yield attention.module, "its heads stay"


def _makers(groups: Iterable[Group]) -> set[str]:
    """Return the modules whose tensors make units of some groups."""
    return {parent_path(part.tensor) for group in groups for part in group.slices if part.makes}
