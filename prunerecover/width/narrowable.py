"""Network to narrow: groups and costs, the edits that remove units, and savings and changes by the edits.

Units are chosen in `allocator`. The weights stay the same during planning, so moments of activations and outputs are
computed once, on first use.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from prunerecover.calibration.moments import Moments
from prunerecover.cost.macs import count_macs
from prunerecover.model.batches import ModelInputs
from prunerecover.model.checks import check_differentiable
from prunerecover.model.copies import share_copy
from prunerecover.plan.edits import Edit, Narrow, Rewrite
from prunerecover.plan.groups import Group
from prunerecover.plan.plan import Plan
from prunerecover.recovery.reconstruction import made_for
from prunerecover.refusal import Refusal
from prunerecover.session.pruned_output import fitted_to
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.width.allocation.cost_model import CostModel, cost_model
from prunerecover.width.allocation.equal_layers import alike
from prunerecover.width.allocation.greedy_fill import Removed
from prunerecover.width.allocation.measured_share import Shares
from prunerecover.width.arguments import WidthConfig, WidthReplace, WidthRule
from prunerecover.width.channel_order import channel_orders
from prunerecover.width.compensation import Reader, moments_of, predictions, readers_of, with_compensation
from prunerecover.width.expert_refit import expert_refits
from prunerecover.width.groups.discovery import find_groups
from prunerecover.width.groups.found import freed_for, warn_of_counted
from prunerecover.width.groups.narrow_edits import narrow_edits
from prunerecover.width.groups.refusals import why_stay
from prunerecover.width.groups.rounding import rounded
from prunerecover.width.tuning import fitted_and_tuned


class NarrowableNetwork:
    """Groups of a network, with costs and edits.

    Args:
        session: Network and samples.
        config: Further arguments of `plan_width`.

    Attributes:
        session: Network and samples.
        groups: Groups that may be narrowed, in order of depth.
        rewrites: Edits required before groups can be narrowed.
        attentions: Paths of attentions with heads visible only under `with_free_heads`.
        costs: Cost of every unit.
    """

    def __init__(self, session: Session, config: WidthConfig) -> None:
        self.session, self.model = session, session.model
        check_differentiable(self.model)
        traced = None if set(config.kinds) == {"expert"} else session.traced
        found = find_groups(self.model, session.example, config.kinds, config.ignore, traced)
        warn_of_counted(found.counted)
        if not found.groups:
            raise Refusal(
                f"{type(self.model).__name__} to have groups that can lose any number of units",
                "all lie in equal parts of one tensor and must lose as many as others",
                "Remove whole layers with plan_depth.",
            )
        self.groups: tuple[Group, ...] = with_a_gate(found.groups) if config.gates else found.groups
        self.rewrites = found.edits
        self.attentions = found.attentions
        rewritten = share_copy(self.model)
        apply_edits(rewritten, self.rewrites)
        stays = partial(why_stay, found, config.kinds)
        self.costs: CostModel = cost_model(rewritten, self.groups, session.example, stays)
        self._latest: tuple[tuple[Edit, ...], tuple[list[Edit], dict[str, Tensor]]] | None = None

    @property
    def units(self) -> dict[str, int]:
        """Number of units of each kind."""
        counts: Counter[str] = Counter()
        for group in self.groups:
            counts[group.kind] += group.size
        return dict(counts)

    @property
    def groups_as_they_are(self) -> list[Group]:
        """Groups without the weights still missing in shortcuts to be rewritten."""
        rewritten = tuple(f"{edit.unit}." for edit in self.rewrites if isinstance(edit, Rewrite))
        return [
            dataclasses.replace(
                group, slices=tuple(part for part in group.slices if not part.tensor.startswith(rewritten))
            )
            for group in self.groups
        ]

    def edits(self, removed: Removed, more: Sequence[Group] = ()) -> tuple[Edit, ...]:
        """Return the edits that remove units; empty if no unit goes.

        Args:
            removed: Removed units, by group name.
            more: Further groups, e.g. dimensions of heads.
        """
        narrowed = narrow_edits((*self.groups, *more), removed)
        freed = freed_for(((edit.kind, edit.group) for edit in narrowed), self.attentions)
        rewrites = (edit for edit in self.rewrites if isinstance(edit, Rewrite) or edit.unit in freed)
        return (*rewrites, *narrowed) if narrowed else ()

    def compensated(self, edits: Sequence[Edit], replace: WidthReplace) -> tuple[list[Edit], dict[str, Tensor]]:
        """Return the edits with refitted reading weights."""
        narrowing = [edit for edit in edits if isinstance(edit, Narrow)]
        if replace == "zero" or not narrowing:
            return list(edits), {}
        if self._latest is None or self._latest[0] != tuple(edits):  # the final plan is usually the last one measured
            self._latest = tuple(edits), with_compensation(edits, predictions(narrowing, self._moments))
        return self._latest[1]

    def finished(self, plan: Plan, replace: WidthReplace) -> Plan:
        """Return a decided plan with refitted weights, fitted to all samples, held-out samples included.

        Weights that read a group are tuned on the output, and kept experts take over the work of removed experts.

        Args:
            plan: Plan with the edits and tensors from `compensated`; returned unchanged if no samples were held out.
            replace: Treatment of the weights, as in `compensated`.
        """
        session, tensors = self.session, plan.tensors
        if replace == "zero" or not session.samples.enough:
            return plan
        if tensors and session.output.comparable:
            tensors = fitted_and_tuned(plan.edits, {}, session.samples, session.output)
        refits, fitted = expert_refits(session, plan.edits, tensors)
        return plan.model_copy(update={"edits": (*plan.edits, *refits)}).with_tensors({**tensors, **fitted})

    def shares(self, cost: str, removed: Removed, rule: WidthRule) -> Shares:
        """Return the savings of an allocation in a cost.

        Args:
            cost: Cost, "macs" or "params".
            removed: Allocation.
            rule: Rule of the choice and the treatment of readers: a detector's computation depends on its outputs.
        """
        network, full = self._narrowed(removed, rule.replace), getattr(self.costs.full, cost)
        if cost == "macs":
            left = count_macs(network, self.session.example)
        else:
            left = sum(parameter.numel() for parameter in network.parameters())
        gone = {name: len(units) for name, units in removed.items()}
        predicted = self.costs.total({name: self.costs.sizes[name] - count for name, count in gone.items()})
        groups = rounded(self.groups, rule.round_to)
        together = alike(groups) if rule.evenly else [(group,) for group in groups]
        units = [
            sum(getattr(self.costs.saving(group.name, gone, group.multiple), cost) for group in layers)
            for layers in together
            if all(group.size - gone[group.name] > max(group.at_least, group.multiple) for group in layers)
        ]
        return Shares(
            predicted=1 - getattr(predicted, cost) / full,
            measured=1 - left / full,
            unit=min((saved for saved in units if saved), default=full) / full,
        )

    def macs_saved(self, removed: Removed, replace: WidthReplace) -> tuple[float, float, float, int]:
        """Return the share of the MACs saved by an allocation; see `warn_if_inputs_decide`."""
        session, network = self.session, self._narrowed(removed, replace)
        first, batch = session.first, session.inputs(session.batches[-1])

        def saved(inputs: ModelInputs, dense: int) -> float:
            return 1 - count_macs(network, inputs) / dense

        last, whole = batch.select(torch.tensor([batch.n_samples - 1])), count_macs(self.model, first)
        sample = saved(session.example, self.costs.full.macs)
        proportional = whole == first.n_samples * self.costs.full.macs
        of_batch = sample if proportional else saved(first, whole)
        return sample, saved(last, count_macs(self.model, last)), of_batch, first.n_samples

    def _narrowed(self, removed: Removed, replace: WidthReplace) -> nn.Module:
        network = share_copy(self.model)
        apply_edits(network, *self.compensated(self.edits(removed), replace))
        return network

    @cached_property
    def _moments(self) -> dict[Reader, Moments]:
        """Moments for all readers of groups, in memory as long as this object: the square of each group's entries."""
        return moments_of(self.model, readers_of(self.groups), self._samples)

    @cached_property
    def channel_orders(self) -> dict[str, Tensor]:
        """Orders of removal of channels by group, for a network with reconstruction; see `channel_order`."""
        groups = [group for group in self.groups_as_they_are if group.kind == "channel"]
        return channel_orders(self.session, groups, self._samples) if groups and made_for(self.model) else {}

    @property
    def _samples(self) -> Sequence[ModelInputs]:
        """Samples for fits of weights."""
        return fitted_to(self.session.samples, self.session.output)


def with_a_gate(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return the groups with a place for gates, and warn of the rest; all groups if no group has one."""
    kept = tuple(group for group in groups if group.taps)
    left_out = [group.name for group in groups if not group.taps]
    if not kept or not left_out:
        return tuple(groups)
    more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
    warnings.warn(
        f"{', '.join(left_out[:3])}{more} stay as they are: their units have no place where 'gate_taylor' could gate "
        "them. Use importance='magnitude' to narrow them, too, or name them in ignore=.",
        stacklevel=2,
    )
    return kept
