"""Sites of width: groups with costs, and reasons for the refusal of units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from torch import nn

from prunerecover.graph.regions import find_attentions
from prunerecover.graph.trace import Traced
from prunerecover.model.batches import ModelInputs
from prunerecover.model.checks import computed_weights
from prunerecover.model.copies import share_copy
from prunerecover.model.paths import get_module, is_within, parent_path
from prunerecover.plan.groups import Group
from prunerecover.plan.kinds import plural
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.width.allocation.cost_model import cost_model
from prunerecover.width.groups.found import FIXED, FoundGroups
from prunerecover.width.groups.refusals import stays


def with_costs(
    model: nn.Module, found: FoundGroups, example: ModelInputs | None, blocks: Sequence[str]
) -> tuple[Group, ...]:
    """Return the groups with the parameters and MACs of all units, and with the blocks around the groups.

    Args:
        model: Network without wrappers.
        found: Groups in the network.
        example: Batch for counting MACs, of all samples together. None: the MACs are 0.
        blocks: Paths of all blocks.
    """
    rewritten = share_copy(model)
    apply_edits(rewritten, found.edits)
    sizes = [group for group in found.groups if group.kind == "head_dim"]  # inside heads: the same entries
    others = [group for group in found.groups if group.kind != "head_dim"]
    costs = [cost_model(rewritten, some, example) for some in (sizes, others) if some]
    samples = 0 if example is None else example.n_samples
    groups = []
    for group in found.groups:
        own = next(one for one in costs if group.name in one.sizes)
        macs, params = own.saving(group.name, {}, group.size)
        made = [part.tensor for part in group.slices if part.makes]
        block = next((path for path in blocks if all(is_within(tensor, path) for tensor in made)), "")
        groups.append(replace(group, params=params, macs=macs * samples, block=block))
    return tuple(groups)


def refused_groups(found: FoundGroups, kinds: Sequence[str]) -> dict[str, str]:
    """Return reasons why units stay, each with a way out, by the module that makes the units.

    Args:
        found: Groups of the requested kinds.
        kinds: Requested kinds.
    """
    reasons: dict[str, list[str]] = {}
    for name, reason in _reasons(found, kinds):
        if reason not in reasons.setdefault(name, []):
            reasons[name].append(reason)
    return {name: ". ".join(own) for name, own in reasons.items()}


def _reasons(found: FoundGroups, kinds: Sequence[str]) -> Iterator[tuple[str, str]]:
    for one in found.counted:
        yield one.group.name, f"its {plural(one.group.kind)} are counted by {one.operation}; {FIXED}"
    for together in found.linked:
        names = ", ".join(f"'{group.name}'" for group in together)
        reason = f"lie in equal parts of one tensor, of which each must lose as many ({names}); remove whole layers"
        yield from ((group.name, f"its {plural(group.kind)} {reason}") for group in together)
    modules = () if found.traced is None else found.traced.model.named_modules()
    computed = {path: weights for path, module in modules if (weights := computed_weights(module))}
    for path, weights in computed.items():
        yield from ((path, f"its {one.name} is computed by {one.how}; {one.way_out}") for one in weights)
    for kind in kinds:
        explained = {*(group.name for group in found.named), *computed}
        explained |= {
            parent_path(part.tensor)
            for group in found.groups
            if group.kind == kind
            for part in group.slices
            if part.makes
        }
        for stay in stays(found, (kind,)):
            if stay.name not in explained:
                explained.add(stay.name)
                yield stay.name, f"its {plural(kind)} stay by {stay.by}; {stay.way_out}"
        if kind in ("head", "head_dim") and found.traced is not None:
            yield from _attentions_without_heads(found.traced, found, explained)


def _attentions_without_heads(traced: Traced, found: FoundGroups, explained: Set[str]) -> Iterator[tuple[str, str]]:
    """Yield attentions with heads in no group and not refused yet, each with a reason.

    Attentions are modules that multiply activations with each other, and all modules of the same classes.

    Args:
        traced: Trace of a forward pass.
        found: Groups in the network.
        explained: Paths of modules in a group, or refused already.
    """
    multiplying = {attention.module for attention in find_attentions(traced.graph)} - {""}
    run = multiplying | {attention.path for attention in traced.ties.attentions} - {""}
    classes = {type(get_module(traced.model, path)) for path in run}
    for path, module in traced.model.named_modules():
        if type(module) not in classes or any(is_within(name, path) for name in explained):
            continue
        failed = next((error for group, error in found.failed.items() if is_within(group.name, path)), "")
        if path not in run and not traced.graph.times[path]:
            why = "the example does not call it"
        elif path not in multiplying:
            why = "it multiplies nothing that depends on the inputs"
        elif failed:
            why = f"code fails with fewer of the features that they share ({failed})"
        else:
            why = "they lie in one dimension with samples or positions where it multiplies"
        yield path, f"its heads stay: {why}; remove the attention as a whole"
