"""PruneReport: write down what a fit with surgery did, at its end."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_info

from prunerecover.callbacks.calibration.capture import capture_inputs
from prunerecover.callbacks.distillation.teacher import copy_dense
from prunerecover.callbacks.ledger.callback import LedgerCallback
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.surgery.artifacts import is_dry_run
from prunerecover.checkpoint.ledger_record import SurgeryEvent
from prunerecover.model.batches import ModelInputs
from prunerecover.plan.evidence import PlanningCost, SearchEvidence
from prunerecover.plan.plan import Plan
from prunerecover.report.compare import compare
from prunerecover.report.curves import plot_history
from prunerecover.report.data import SearchCost
from prunerecover.surgery.merging import merge

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PruneReport(LedgerCallback):
    """Compare the network before and after pruning (parameters, MACs, latency, memory), with the metrics over epochs.

    Args:
        dir: Folder for report.md, report.json, plan.json and the figures; relative to the trainer's default_root_dir.
        target: Path of the network inside the LightningModule; default: the one that DepthPrune names, or the
            single supported one.
        samples: Batch size of the measurements.
        pairs: Interleaved pairs of timed passes; 0 skips the timing.
    """

    def __init__(
        self, dir: str | Path = "report", target: str | None = None, samples: int = 8, pairs: int = 30
    ) -> None:
        self.dir, self.target, self.samples, self.pairs = Path(dir), target, samples, pairs
        self.history: dict[str, list[tuple[int, float]]] = {}
        self._example: ModelInputs | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep a batch to measure on."""
        super().on_train_start(trainer, pl_module)
        target = self.network_path(trainer, pl_module)
        self._example = capture_inputs(trainer, pl_module, target, self.samples, seed=0)[0]

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the metrics of the epoch."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        for name, value in trainer.callback_metrics.items():
            if name != "removed_units":
                self.history.setdefault(name, []).append((trainer.current_epoch, float(value)))

    def state_dict(self) -> dict[str, Any]:
        """Keep the history in checkpoints."""
        return {"history": copy.deepcopy(self.history)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the history of the run that is resumed."""
        self.history = copy.deepcopy(state_dict["history"])

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure and write, on one rank."""
        if not trainer.is_global_zero or self._example is None or is_dry_run(trainer):
            return
        folder = self.dir if self.dir.is_absolute() else Path(trainer.default_root_dir) / self.dir
        target, ledger = self.network_path(trainer, pl_module), Ledger.of(pl_module)
        dense = copy_dense(pl_module, target)
        pruned = ledger.plain_copy(pl_module, target)
        plan = ledger.plans.get(target, Plan())
        merge(pruned)
        inputs = self._example.to(pl_module.device)
        details = {"history": self.history, "surgeries": [event.to_dict() for event in ledger.events]}
        search = search_cost(plan, ledger.events, target)
        report = compare(dense, pruned, inputs, plan=plan, search=search, pairs=self.pairs, details=details)
        report.save(folder, figures=self._figures(plan, [e for e in ledger.events if e.target == target]))
        plan.save(folder / "plan.json")
        rank_zero_info(f"prunerecover: report written to {folder}")

    def _figures(self, plan: Plan, events: Sequence[SurgeryEvent]) -> dict[str, Figure]:
        figures = {"layers": plan.plot()} if plan.removed else {}
        surgeries = [(event.epoch, f"-{len(event.units)}") for event in events]
        for name, points in self.history.items():
            if "acc" in name or "top" in name or "loss" in name:
                figures[name.replace("/", "_")] = plot_history(
                    {name: points}, surgeries, metric=name, percent="loss" not in name
                )
        return figures


def search_cost(plan: Plan, events: Sequence[SurgeryEvent], target: str) -> SearchCost | None:
    """Return what all planning took: within the fit, and before it; None if neither is known.

    Args:
        plan: All surgeries of the network; its evidence may say what a search before the fit took.
        events: The ledger's surgeries, with the seconds that it took to decide.
        target: Path of the network; events of others do not count.
    """
    before = SearchEvidence.of(plan.evidence).search
    within = [e.seconds for e in events if e.target == target and e.seconds is not None]
    if before is None and not within:
        return None
    cost = before or PlanningCost()
    return SearchCost(seconds=cost.seconds + sum(within), peak_memory_bytes=cost.peak_memory_bytes, trials=cost.trials)
