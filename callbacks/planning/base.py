"""Planning part of a pruning callback, with the arguments of one planning function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
from torch import nn

from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.display.progress import hidden, progress
from prunerecover.importance.measuring.names import name_of
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan


class Planning(ABC):
    """Planning function and its arguments.

    Attributes:
        config: All arguments but the budget.
    """

    config: Any

    @abstractmethod
    def check_budget(self, budget: Budget | None) -> None:
        """Raise an error if the budget of a callback is wrong for any network."""

    @abstractmethod
    def decide(self, surgery: Surgery, budget: Budget | None) -> Plan:
        """Return the plan for the network in its present state; called on every rank, with isolated random state.

        Args:
            surgery: Network and captured inputs.
            budget: Amount to remove from the network in its present state; None: set by a tolerance.
        """

    @abstractmethod
    def check_feasible(self, surgery: Surgery, budget: Budget | None, whole: Budget | None) -> None:
        """Raise errors of a later surgery that need no scores; called on every rank, with isolated random state.

        Args:
            surgery: Network to prune, and the first calibration batch.
            budget: Budget of all surgeries before other callbacks; None: no budget, or another callback comes first.
            whole: Budget of the callback.
        """

    def check_network(self, network: nn.Module) -> None:  # noqa: B027 - most know nothing before there is data
        """Raise the errors known before there is data, when a fit starts that has not pruned yet."""

    def units(self, network: nn.Module, budget: Budget | None) -> dict[str, int]:
        """Return the number of units of each kind, if a budget may count them."""
        return {}

    @property
    def deciding(self) -> dict[str, Any]:
        """Arguments with influence on the removed units, by name in checkpoints."""
        return {name: value for name, value in vars(self.config).items() if name not in ("seed", "store")}

    @property
    def signature(self) -> dict[str, str]:
        """Arguments with influence on the removed units, as plain data; functions by name, except losses."""
        given = {n: v for n, v in self.deciding.items() if n != "loss" or not callable(v)}
        return {n: name_of(v) if callable(v) else str(v) for n, v in given.items()}

    @classmethod
    def check_alone(cls, given: Mapping[str, Any]) -> None:
        """Raise ValueError if an argument of planning is given beside a plan.

        Args:
            given: Arguments by name, as given by the user.
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
    """Return an argument in the form stored by a configuration: a sequence, or a lone string, as a tuple."""
    alone = isinstance(value, str) and isinstance(default, tuple)
    return (value,) if alone else tuple(value) if isinstance(value, list) else value


@contextmanager
def planning_progress(trainer: pl.Trainer, description: str) -> Iterator[None]:
    """Show the progress of planning on the first rank.

    Args:
        trainer: Trainer with its settings: without a progress bar of the Trainer, long work is reported in lines.
        description: Text of the bar until an inner stage replaces the text.
    """
    bar = trainer.progress_bar_callback is not None
    with hidden(not trainer.is_global_zero), progress(description, bar=bar):
        yield
