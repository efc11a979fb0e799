"""Base of plan methods, which decide about a network on its inputs at the start of a recipe's fit.

A method is a class, so that the command line can name a method (`--method depth`, `--method boundary`, or a class path)
with its arguments (`--method.remove '{"activation": 3}'`).
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar, get_type_hints

import lightning.pytorch as pl

from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.ledger.target import find_network, find_target
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.callbacks.trials.nested import at_start_of_fit
from prunerecover.plan.budget import Budget
from prunerecover.plan.kinds import plural
from prunerecover.plan.plan import Plan
from prunerecover.store.search_store import delete_results

CALIBRATION = 192
T = TypeVar("T")


@dataclass(frozen=True)
class PlanTask:
    """Subject of a plan method.

    Attributes:
        module: Module with the dense network.
        datamodule: Data of the module; None: the module has its own loaders.
        target: Path of the network in the module.
        calibration: Number of training samples to calibrate on; `capture_inputs` draws the samples.
        output: File of the plan; further files of a method go beside it.
        checkpoint: File with the loaded weights; None: the weights from the module's construction.
    """

    module: pl.LightningModule
    datamodule: pl.LightningDataModule | None
    target: str
    calibration: int
    output: Path
    checkpoint: str | None = None

    def at_start(self, do: Callable[[Surgery], T], seed: int) -> T:
        """Return the value of a function of the network and its inputs at the start of a fit; no training follows.

        Args:
            do: Function, called once, with a copy of the module.
            seed: Seed of the samples and of all random draws.
        """

        def visit(trainer: pl.Trainer, module: pl.LightningModule) -> T:
            return do(Surgery(trainer, module, self.target, self.calibration, seed))

        return at_start_of_fit(self.module, self.datamodule, visit, seed)


class PlanMethod(ABC):
    """Method that chooses the units to remove from a network.

    Attributes:
        calibration: Number of training samples to calibrate on, unless the command gives a number.
    """

    calibration = CALIBRATION

    def find(self, module: pl.LightningModule, target: str | None) -> str:
        """Return the path of a network for this method: the only supported network by default."""
        return find_target(module, target)

    @abstractmethod
    def make(self, task: PlanTask) -> Plan:
        """Return the plan; network and module stay unchanged."""

    def write(self, plan: Plan, output: Path) -> None:
        """Write the plan and further files to look at; on the first rank only."""
        plan.save(output)

    def written(self, plan: Plan, output: Path) -> str:
        """Describe the written files: removed units of depth by name, units of width by number."""
        groups = plan.kept_groups
        parts = []
        for kind, units in plan.removed.items():
            size = sum(group.size for group in groups if group.kind == kind)
            parts.append(
                f"{len(units)} of {size} {plural(kind)}"
                if size
                else f"{len(units)} {plural(kind) if len(units) > 1 else kind} ({' '.join(units)})"
            )
        return f"Wrote {output}: removes {', '.join(parts) or 'nothing'}"


class AnyNetworkMethod(PlanMethod):
    """Method for any network, of a supported family or not."""

    def find(self, module: pl.LightningModule, target: str | None) -> str:
        """Return the path of the network, of any kind."""
        return find_network(module, target)


class ShareArguments(TypedDict, total=False):
    """Types of the arguments of a budget in shares or amounts of costs."""

    macs: float | str | None
    params: float | str | None
    latency: float | str | None
    memory: float | str | None
    checkpoint: float | str | None
    active_params: float | str | None
    batch: int | None
    tokens: int | None
    clock: str | None


class BudgetArguments(ShareArguments, total=False):
    """Types of the arguments of any budget."""

    remove: dict[str, int] | None
    ratio: dict[str, float] | None


def parted(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the given arguments of a budget, and all further arguments.

    >>> parted({"macs": 0.3, "params": None, "seed": 1})
    ({'macs': 0.3}, {'seed': 1})
    """
    names = get_type_hints(BudgetArguments)
    shares = {name: value for name, value in arguments.items() if name in names and value is not None}
    return shares, {name: value for name, value in arguments.items() if name not in names}


class PlanningMethod(AnyNetworkMethod):
    """Method that decides as a pruning callback does at the start of a fit.

    Args:
        planning: Planning of the callback.
        budget: Budget of the callback.
        calibration: Number of training samples to calibrate on, unless the command gives a number.
        target: Path of the network in the module, unless the command gives a path.
    """

    def __init__(
        self, planning: Any, budget: Budget | None, calibration: int = CALIBRATION, target: str | None = None
    ) -> None:
        planning.check_budget(budget)
        self.planning, self.budget, self.calibration, self.target = planning, budget, calibration, target

    @property
    def config(self) -> Any:
        """All arguments of the planning but the budget."""
        return self.planning.config

    def find(self, module: pl.LightningModule, target: str | None) -> str:
        """Return the path of the network, of any kind."""
        return super().find(module, self.target if target is None else target)

    def decide(self, surgery: Surgery) -> Plan:
        """Return the plan for the network in its state at the start of a fit."""
        plan: Plan = self.planning.decide(surgery, self.budget)
        return plan

    def make(self, task: PlanTask) -> Plan:
        """Return the callback's plan at the start of a fit."""
        return task.at_start(self.decide, self.config.seed)


class SearchMethod(PlanningMethod):
    """Method with a search, whose intermediate results lie beside the plan until that is written."""

    def make(self, task: PlanTask) -> Plan:
        """Return the callback's plan at the start of a fit."""
        self.planning.config = stored(self.config, task.output)
        return super().make(task)

    def write(self, plan: Plan, output: Path) -> None:
        """Write the plan, and delete the results of the search."""
        save_found(plan, output)


def decided_at_start(prune: PruneCallback, task: PlanTask) -> Plan:
    """Return the plan of a callback at the start of a fit.

    Args:
        prune: Callback with the budget.
        task: Network, data and files.
    """
    method = PlanningMethod(prune.planning, prune.surgeries.budget)
    return method.make(dataclasses.replace(task, calibration=prune.calibration))


def beside(output: Path, ending: str) -> Path:
    """Return the path of a file beside a plan, named as `Plan.save` names the fitted tensors.

    >>> beside(Path("plans/vit.json"), ".md").name
    'vit.md'
    """
    return output.with_name(output.name.removesuffix(".json") + ending)


def search_store(output: Path) -> Path:
    """Return the folder with the results of a search, kept until the plan is written."""
    return beside(output, ".search")


def stored(config: T, output: Path) -> T:
    """Return the arguments of a planning with a store: beside the plan, unless they name one.

    Args:
        config: Arguments.
        output: File of the plan.
    """
    return dataclasses.replace(config, store=config.store or search_store(output))  # type: ignore[type-var, attr-defined]


def save_found(plan: Plan, output: Path) -> None:
    """Write the plan of a search, and delete the results of the search."""
    plan.save(output)
    delete_results(search_store(output))
