"""Plan methods: decide about a network, fed with its inputs at the start of a recipe's fit.

A method is a class, so that the command line can name any of them (`--method depth`, `--method boundary`, or your own
class path) with its arguments (`--method.remove '{"activation": 3}'`).
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, get_type_hints

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


@dataclass(frozen=True)
class PlanTask:
    """What a method decides about.

    Attributes:
        module: Holds the dense network.
        datamodule: Its data; None: the module has its own.
        target: Path of the network in the module.
        calibration: How many training samples to calibrate on; `capture_inputs` draws them.
        output: The plan's file; what else a method writes goes beside it.
        checkpoint: File that the weights were loaded from; None: they are those that the module was built with.
    """

    module: pl.LightningModule
    datamodule: pl.LightningDataModule | None
    target: str
    calibration: int
    output: Path
    checkpoint: str | None = None


class PlanMethod(ABC):
    """Decides what to remove from a network.

    Attributes:
        calibration: Number of training samples to calibrate on, where the command says none.
    """

    calibration = CALIBRATION

    def find(self, module: pl.LightningModule, target: str | None) -> str:
        """Return the path of the network that this method can decide about: the only supported one by default."""
        return find_target(module, target)

    @abstractmethod
    def make(self, task: PlanTask) -> Plan:
        """Return the plan; network and module stay as they are."""

    def write(self, plan: Plan, output: Path) -> None:
        """Write the plan and whatever there is to look at; on one rank."""
        plan.save(output)

    def written(self, plan: Plan, output: Path) -> str:
        """Say what `write` has written: units of depth by name, those of width by number."""
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
    """Decides about any network, of a supported family or not."""

    def find(self, module: pl.LightningModule, target: str | None) -> str:
        """Return the path of the network: any will do."""
        return find_network(module, target)


class ShareArguments(TypedDict, total=False):
    """Types of the arguments of a budget in a share of a cost."""

    macs: float | None
    params: float | None
    latency: float | None


class BudgetArguments(ShareArguments, total=False):
    """Types of the arguments of any budget."""

    remove: dict[str, int] | None
    ratio: dict[str, float] | None


def parted(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of a budget that were given, and all others.

    >>> parted({"macs": 0.3, "params": None, "seed": 1})
    ({'macs': 0.3}, {'seed': 1})
    """
    names = get_type_hints(BudgetArguments)
    shares = {name: value for name, value in arguments.items() if name in names and value is not None}
    return shares, {name: value for name, value in arguments.items() if name not in names}


class PlanningMethod(AnyNetworkMethod):
    """Decides as a pruning callback does at the start of a fit.

    Args:
        planning: Planning of the callback.
        budget: Budget of the callback.
        calibration: Number of training samples to calibrate on, where the command says none.
        target: Path of the network in the module, where the command says none.
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
        """Return the path of the network: any will do."""
        return super().find(module, self.target if target is None else target)

    def decide(self, surgery: Surgery) -> Plan:
        """Return the plan for the network as it is at the start of a fit."""
        plan: Plan = self.planning.decide(surgery, self.budget)
        return plan

    def make(self, task: PlanTask) -> Plan:
        """Return the plan that the callback would make at the start of a fit."""

        def decide(trainer: pl.Trainer, module: pl.LightningModule) -> Plan:
            return self.decide(Surgery(trainer, module, task.target, task.calibration, self.config.seed))

        return at_start_of_fit(task.module, task.datamodule, decide, self.config.seed)


def decided_at_start(prune: PruneCallback, task: PlanTask) -> Plan:
    """Return the plan that a callback makes at the start of a fit.

    Args:
        prune: Callback with the budget.
        task: What it decides about.
    """
    method = PlanningMethod(prune.planning, prune.budget)
    return method.make(dataclasses.replace(task, calibration=prune.calibration))


def beside(output: Path, ending: str) -> Path:
    """Return the path of what lies beside a plan, named as `Plan.save` names the fitted tensors.

    >>> beside(Path("plans/vit.json"), ".md").name
    'vit.md'
    """
    return output.with_name(output.name.removesuffix(".json") + ending)


def search_store(output: Path) -> Path:
    """Return the folder of what a search in depth has found, until its plan is written."""
    return beside(output, ".search")


def save_found(plan: Plan, output: Path) -> None:
    """Write the plan of a search in depth, and delete what was found on the way."""
    plan.save(output)
    delete_results(search_store(output))
