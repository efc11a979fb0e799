"""PruneReport: a report of a fit with surgery, written at its end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from prunerecover.callbacks.calibration.capture import capture_inputs
from prunerecover.callbacks.distillation.teacher import copy_dense
from prunerecover.callbacks.ledger.callback import LedgerCallback
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.logs.history import LoggedHistory, logged_in_training, logged_now
from prunerecover.callbacks.surgery.artifacts import is_dry_run
from prunerecover.checkpoint.ledger_record import QualityTrail, SurgeryEvent
from prunerecover.frontiers.frontier import Frontier
from prunerecover.model.arguments import check_whole
from prunerecover.model.batches import ModelInputs
from prunerecover.plan.evidence import PlanningCost, SearchEvidence
from prunerecover.plan.plan import Plan
from prunerecover.report.compare import compare
from prunerecover.report.curves import plot_history
from prunerecover.report.data import LoggedMetric
from prunerecover.report.logged import is_share, logged_metrics
from prunerecover.report.render import HEADER, rows
from prunerecover.report.report import Report
from prunerecover.surgery.merging import merge

REPORT = "prune_report"  # in loggers
LOADER = "/dataloader_idx_"  # Lightning's suffix of metrics with several dataloaders

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PruneReport(LedgerCallback):
    """Compare the network before and after pruning (parameters, MACs, latency, memory), with the metrics over epochs.

    Validation metrics are shown before the first surgery, right after the last surgery, and at the end. If the surgery
    comes before any validation, validate the dense network first, with the same PruneReport and without pruning
    callbacks, then fit with both:

        report = PruneReport()
        Trainer(callbacks=[report]).validate(module, datamodule=data)
        Trainer(callbacks=[WidthPrune(plan="plan.json"), report]).fit(module, datamodule=data)

    Args:
        dir: Folder for report.md, report.json, plan.json and the figures; relative to the trainer's default_root_dir.
        target: Path of the network inside the LightningModule; default: the target of the pruning callbacks, or the
            only network.
        samples: Batch size of the measurements.
        pairs: Interleaved pairs of timed passes; 0 skips the timing, fewer than 6 give a range and no interval.
        metrics: Names of logged metrics to show, in validation or in training (up to the epoch's validation); a name
            covers the metrics of all dataloaders. None: all metrics logged in validation.

    Raises:
        TypeError: If samples or pairs are no whole numbers, or metrics no names.
        ValueError: If samples or pairs are too small.
    """

    def __init__(
        self,
        dir: str | Path = "report",
        target: str | None = None,
        samples: int = 8,
        pairs: int = 30,
        metrics: str | Collection[str] | None = None,
    ) -> None:
        check_whole("samples", samples, 1)
        check_whole("pairs", pairs, 0)
        self.dir, self.target, self.samples, self.pairs = Path(dir), target, samples, pairs
        self.metrics = None if metrics is None else _names(metrics)
        self._logged = LoggedHistory()
        self._example: ModelInputs | None = None

    @property
    def history(self) -> dict[str, list[tuple[int, float]]]:
        """Points (epoch, value) of the present fit, by name of the metric."""
        return self._logged.of_this_fit()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Expect another fit, unless a checkpoint brings the history of a fit."""
        super().setup(trainer, pl_module, stage)
        self._logged.resumed, self._example = False, None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep a batch to measure on."""
        super().on_train_start(trainer, pl_module)
        target = self.network_path(trainer, pl_module)
        self._logged.begin(_surgeries(pl_module, target))
        self._example = capture_inputs(trainer, pl_module, target, self.samples, seed=0)[0]

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the metrics of the epoch, including metrics logged at the end of validation."""
        super().on_validation_end(trainer, pl_module)
        if trainer.sanity_checking:
            return
        here = logged_now(trainer._results)
        if trainer.state.fn == "validate" and Ledger.of(pl_module).is_dense:
            self._logged.dense = here
        elif trainer.state.fn == "fit":
            done = len(_surgeries(pl_module, self.network_path(trainer, pl_module)))
            self._logged.add(logged_in_training(trainer) | here, trainer.current_epoch, done)
            self._logged.note_validated(here)

    def state_dict(self) -> dict[str, Any]:
        """Keep the history in checkpoints."""
        return self._logged.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the history of the run that is resumed."""
        self._logged = LoggedHistory.from_state(state_dict)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure and write, on the first rank; keep an existing report if nothing was left to train."""
        if not trainer.is_global_zero or self._example is None or is_dry_run(trainer):
            return
        folder = self.dir if self.dir.is_absolute() else Path(trainer.default_root_dir) / self.dir
        if not Ledger.of(pl_module).has_trained and (folder / "report.json").exists():
            return
        target, ledger = self.network_path(trainer, pl_module), Ledger.of(pl_module)
        dense = copy_dense(pl_module, target)
        pruned = ledger.plain_copy(pl_module, target)
        plan = ledger.plans.get(target, Plan())
        merge(pruned)
        inputs, cost = self._example.to(pl_module.device), planning_cost(plan, ledger.events, target)
        details = {"history": self.history, "surgeries": [event.to_dict() for event in ledger.events]}
        events = _surgeries(pl_module, target)
        shown = {name: self._logged.points[name] for name in self._shown()}
        logged = logged_metrics(shown, len(events), self._logged.dense)
        report = compare(dense, pruned, inputs, plan=plan, planning_cost=cost, pairs=self.pairs, details=details)
        report = report.model_copy(update={"logged": logged, "quality": _trail(ledger, target)})
        figures = self._figures(plan, events[self._logged.begun :], logged)
        report.save(folder, figures=figures)
        plan.save(folder / "plan.json")
        for logger in trainer.loggers:
            log_report(logger, report, figures, trainer.global_step)
        rank_zero_info(f"prunerecover: report written to {folder}")

    def _shown(self) -> list[str]:
        """Return the names of the metrics to show; warn about metrics never logged."""
        if self.metrics is None:
            return self._logged.validated
        known = self._logged.points
        found = {name: [k for k in known if k == name or k.startswith(f"{name}{LOADER}")] for name in self.metrics}
        missing = [name for name, meant in found.items() if not meant]
        if missing:
            rank_zero_warn(
                f"Expected PruneReport's metrics among those that are logged ({', '.join(known) or 'none'}), "
                f"but got {', '.join(missing)}: the report is without. Log it in validation_step, or name another."
            )
        return [name for meant in found.values() for name in meant]

    def _figures(
        self, plan: Plan, events: Sequence[SurgeryEvent], logged: Mapping[str, LoggedMetric]
    ) -> dict[str, Figure]:
        figures = {"layers": plan.plot()} if plan.removed else {}
        if (frontier := Frontier.of(plan.evidence)) is not None:
            figures["other budgets"] = frontier.plot()
        surgeries = [(event.epoch, event.summary) for event in events]
        for name, points in self.history.items():
            if name in logged or "loss" in name.lower():
                before = logged[name].dense if name in logged else None
                figures[f"{name} logged" if name == "layers" else name] = plot_history(
                    {name: points},
                    surgeries,
                    dense=None if before is None else before[1],
                    metric=name,
                    percent=is_share(name, [value for _, value in points]),
                )
        return figures


def _surgeries(module: pl.LightningModule, target: str) -> list[SurgeryEvent]:
    """Return the surgeries that removed units of the network at `target`, in order."""
    return [event for event in Ledger.of(module).events if event.target == target and event.units]


def _trail(ledger: Ledger, target: str) -> QualityTrail | None:
    """Return the steps of the last callback that pruned the network at `target` by a metric, or None."""
    own = [trail for trail in ledger.quality.values() if trail.target == target]
    return own[-1] if own else None


def _names(metrics: str | Collection[str]) -> list[str]:
    if isinstance(metrics, str):
        return [metrics]
    listed = isinstance(metrics, Collection) and not isinstance(metrics, Mapping)
    if not listed or not all(isinstance(name, str) for name in metrics):
        raise TypeError(
            f"Expected argument metrics to be the name of a logged metric or a list of names, but got {metrics!r}. "
            'Pass what the module logs, such as metrics="val_acc".'
        )
    return list(metrics)


def planning_cost(plan: Plan, events: Sequence[SurgeryEvent], target: str) -> PlanningCost | None:
    """Return the cost of all planning, within the fit and before the fit; None if neither is known.

    Args:
        plan: Plan of all surgeries of the network; its evidence may hold the cost of a search before the fit.
        events: Surgeries in the ledger, each with the seconds spent on planning.
        target: Path of the network; events of other networks do not count.
    """
    before = SearchEvidence.of(plan.evidence).search
    within = [e.seconds for e in events if e.target == target and e.seconds is not None]
    if before is None and not within:
        return None
    cost = before or PlanningCost()
    return cost.model_copy(update={"seconds": cost.seconds + sum(within)})


def log_report(logger: Logger, report: Report, figures: Mapping[str, Figure], step: int) -> None:
    """Show a report and its figures in a logger; loggers of numbers alone are told at each surgery.

    TensorBoard shows the report as text and the figures as images, Weights & Biases shows the table of before and after
    and the figures, and a CSV logger's folder gets the report's files.

    Args:
        logger: Logger of the trainer.
        report: Report of the fit.
        figures: Figures by name.
        step: Step of the entry in the log.
    """
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.add_text(REPORT, report.to_markdown(), step)
        for name, figure in figures.items():
            logger.experiment.add_figure(f"{REPORT}/{name}", figure, step, close=False)
    elif isinstance(logger, WandbLogger):
        logger.log_table(f"{REPORT}/before_and_after", columns=list(HEADER), data=[list(row) for row in rows(report)])
        for name, figure in figures.items():
            logger.log_image(f"{REPORT}/{name}", [figure])
    elif isinstance(logger, CSVLogger):
        report.save(Path(logger.log_dir) / REPORT, figures=figures)
