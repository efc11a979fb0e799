"""The part of a pruning callback that decides what goes, with the arguments of one planning function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import nn

from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.importance.measuring.names import name_of
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan


class Planning(ABC):
    """What goes: the arguments of a planning function, and the function.

    Attributes:
        config: All arguments but the budget.
    """

    config: Any

    @abstractmethod
    def check_budget(self, budget: Budget | None) -> None:
        """Raise what is wrong with the budget of a callback, whatever the network is."""

    @abstractmethod
    def decide(self, surgery: Surgery, budget: Budget | None) -> Plan:
        """Return the plan for the network as it is now; called on every rank, random state isolated.

        Args:
            surgery: Network and captured inputs.
            budget: How much of the network, as it is now, goes; None: what the tolerance says.
        """

    @abstractmethod
    def check_feasible(self, surgery: Surgery, budget: Budget | None, whole: Budget | None) -> None:
        """Raise what a surgery to come would raise whatever units score; called on every rank, random state isolated.

        Args:
            surgery: Network that will be pruned, and the first calibration batch.
            budget: Budget of all surgeries before those of others; None: there is none, or others come first.
            whole: Budget of the callback.
        """

    def check_network(self, network: nn.Module) -> None:  # noqa: B027 - most know nothing before there is data
        """Raise what is known to be wrong before there is data, when a fit starts that has not pruned yet."""

    def units(self, network: nn.Module, budget: Budget | None) -> dict[str, int]:
        """Return how many units of each kind there are, where a budget may count them."""
        return {}

    @property
    def deciding(self) -> dict[str, Any]:
        """Arguments that decide which units go, by the names that checkpoints have for them."""
        return {name: value for name, value in vars(self.config).items() if name not in ("seed", "store")}

    @property
    def signature(self) -> dict[str, str]:
        """The arguments that decide which units go, as plain data; functions by name, but for losses."""
        given = {n: v for n, v in self.deciding.items() if n != "loss" or not callable(v)}
        return {n: name_of(v) if callable(v) else str(v) for n, v in given.items()}

    @classmethod
    def check_alone(cls, given: Mapping[str, Any]) -> None:
        """Raise ValueError if something is said beside a plan that only deciding here would read.

        Args:
            given: Arguments by name, as they were given.
        """
        usual = {name: value for name, value in vars(cls().config).items() if name in given and name != "seed"}
        kept = {name: _as_kept(given[name], default) for name, default in usual.items()}
        said = [name for name, default in usual.items() if kept[name] != default]
        if said:
            raise ValueError(
                f"Expected no {', '.join(said)} beside a plan, which says already what goes, but got "
                f"{', '.join(f'{name}={kept[name]!r}' for name in said)}. Pass them to what makes the plan."
            )


def _as_kept(value: object, default: object) -> object:
    """Return an argument as a configuration keeps it: several as a tuple, and one alone in one."""
    alone = isinstance(value, str) and isinstance(default, tuple)
    return (value,) if alone else tuple(value) if isinstance(value, list) else value
