"""PruneReport: write down what a fit with surgery did, at its end."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from prunerecover.callbacks.arguments import check_whole
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
from prunerecover.report.data import LoggedMetric, SearchCost
from prunerecover.report.logged import is_share, logged_metrics
from prunerecover.surgery.merging import merge

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PruneReport(LedgerCallback):
    """Compare the network before and after pruning (parameters, MACs, latency, memory), with the metrics over epochs.

    What the module logs in validation is shown before the first surgery, right after the last one, and at the end. If
    the surgery comes before any validation, `trainer.validate` before the fit gives the dense network's values.

    Args:
        dir: Folder for report.md, report.json, plan.json and the figures; relative to the trainer's default_root_dir.
        target: Path of the network inside the LightningModule; default: the one that DepthPrune names, or the
            single supported one.
        samples: Batch size of the measurements.
        pairs: Interleaved pairs of timed passes; 0 skips the timing.
        metrics: Names of logged metrics to show; None: all that are logged in validation.
    """

    def __init__(
        self,
        dir: str | Path = "report",
        target: str | None = None,
        samples: int = 8,
        pairs: int = 30,
        metrics: str | Sequence[str] | None = None,
    ) -> None:
        check_whole("samples", samples, 1)
        check_whole("pairs", pairs, 0)
        self.dir, self.target, self.samples, self.pairs = Path(dir), target, samples, pairs
        self.metrics = [metrics] if isinstance(metrics, str) else metrics
        self.dense: dict[str, float] = {}
        self.validated: list[str] = []
        self.history: dict[str, list[tuple[int, float]]] = {}
        self._example: ModelInputs | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep a batch to measure on."""
        super().on_train_start(trainer, pl_module)
        target = self.network_path(trainer, pl_module)
        self._example = capture_inputs(trainer, pl_module, target, self.samples, seed=0)[0]

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the metrics of the epoch, those that the module logged at the end of its validation included."""
        super().on_validation_end(trainer, pl_module)
        if trainer.sanity_checking or trainer._results is None:
            return
        here = trainer._results.metrics(on_step=False)["callback"]
        if trainer.state.fn == "validate" and Ledger.of(pl_module).is_dense:
            self.dense = {name: float(value) for name, value in here.items()}
        elif trainer.state.fn == "fit":
            self.validated += [name for name in here if name not in self.validated]
            for name, value in trainer.callback_metrics.items():
                if name != "removed_units":
                    self.history.setdefault(name, []).append((trainer.current_epoch, float(value)))

    def state_dict(self) -> dict[str, Any]:
        """Keep the history in checkpoints."""
        return copy.deepcopy({"history": self.history, "validated": self.validated, "dense": self.dense})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the history of the run that is resumed."""
        self.history = copy.deepcopy(state_dict["history"])
        self.validated = list(state_dict.get("validated", ()))
        self.dense = dict(state_dict.get("dense", {}))

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
        events = [event for event in ledger.events if event.target == target and event.units]
        shown = self._shown()
        logged = logged_metrics({name: self.history[name] for name in shown}, [e.epoch for e in events], self.dense)
        report = compare(dense, pruned, inputs, plan=plan, search=search, pairs=self.pairs, details=details)
        report = report.model_copy(update={"logged": logged})
        report.save(folder, figures=self._figures(plan, events, logged))
        plan.save(folder / "plan.json")
        rank_zero_info(f"prunerecover: report written to {folder}")

    def _shown(self) -> list[str]:
        """Return the names of the metrics that are shown; warn of those that nobody logged."""
        if self.metrics is None:
            return self.validated
        missing = [name for name in self.metrics if name not in self.history]
        if missing:
            rank_zero_warn(
                f"Expected PruneReport's metrics among those that are logged ({', '.join(self.history) or 'none'}), "
                f"but got {', '.join(missing)}: the report is without. Log it in validation_step, or name another."
            )
        return [name for name in self.metrics if name in self.history]

    def _figures(
        self, plan: Plan, events: Sequence[SurgeryEvent], logged: Mapping[str, LoggedMetric]
    ) -> dict[str, Figure]:
        figures = {"layers": plan.plot()} if plan.removed else {}
        surgeries = [(event.epoch, event.summary) for event in events]
        for name, points in self.history.items():
            if name in logged or "loss" in name:
                before = logged[name].dense if name in logged else None
                figures[name.replace("/", "_")] = plot_history(
                    {name: points},
                    surgeries,
                    dense=None if before is None else before[1],
                    metric=name,
                    percent=is_share(name, [value for _, value in points]),
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
