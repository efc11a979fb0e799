"""Causes and ways out for the message about a budget beyond the units of width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import nn

from prunerecover.model.checks import computed_in
from prunerecover.plan.groups import Group
from prunerecover.width.groups.experts import find_experts


@dataclass(frozen=True)
class OutOfReach:
    """Parts of a network without removable units.

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
    def of(cls, model: nn.Module, groups: Sequence[Group]) -> OutOfReach:
        """Examine a network with some groups to narrow."""
        may_go = any(group.kind == "expert" for group in groups)
        return cls(*computed_in(model), experts=may_go or bool(find_experts(model)), may_go=may_go)

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
