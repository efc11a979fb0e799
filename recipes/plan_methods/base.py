"""Plan methods: decide about a network, fed with its inputs at the start of a recipe's fit.

A method is a class, so that the command line can name any of them (`--method depth`, `--method boundary`, or your own
class path) with its arguments (`--method.remove '{"activation": 3}'`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import lightning.pytorch as pl

from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.ledger.target import find_network, find_target
from prunerecover.callbacks.pruning import PruningCallback
from prunerecover.callbacks.trials.nested import at_start_of_fit
from prunerecover.depth.search.search_store import delete_results
from prunerecover.plan.kinds import plural
from prunerecover.plan.plan import Plan


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
    """Decides what to remove from a network."""

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


def decided_at_start(prune: PruningCallback, task: PlanTask) -> Plan:
    """Return the plan that a callback makes at the start of a fit.

    Args:
        prune: With the budget.
        task: What it decides about.
    """

    def decide(trainer: pl.Trainer, module: pl.LightningModule) -> Plan:
        return prune.decide(Surgery(trainer, module, task.target, prune.calibration, prune.seed), prune.budget)

    return at_start_of_fit(task.module, task.datamodule, decide, prune.seed)


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
