"""Announcements of a surgery: to the user's loggers and console, and in the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies.launchers.multiprocessing import _MultiProcessingLauncher
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import nn

from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.surgery.artifacts import artifact_folder, save_plan
from prunerecover.checkpoint.ledger_record import SurgeryEvent
from prunerecover.model.untrained import said_of_untrained
from prunerecover.plan.plan import Plan
from prunerecover.plan.removed_units import shortened


def announce(
    trainer: pl.Trainer,
    ledger: Ledger,
    by: str,
    target: str,
    plan: Plan,
    seconds: float | None = None,
    taken: Mapping[str, float] | None = None,
    kept: str = "",
) -> None:
    """Record a surgery; within a fit, also inform the loggers and the console, and write a plan file.

    The event names units as in the network right before the surgery. The plan file, with all surgeries so far, and
    reports name units as in the dense network.

    Args:
        trainer: Trainer with the loggers to inform (units removed, parameters, MACs per calibration sample).
        ledger: Ledger for the event, for resumed runs.
        by: Key of the callback.
        target: Path of the network.
        plan: Plan of the surgery, before any merging.
        seconds: Time spent on planning, in seconds; None if the plan was made elsewhere.
        taken: Used part of a budget shared by surgeries; see `budget_used`.
        kept: Recovery kept on the pruned network, in words; see `Kept`.
    """
    units = [name for names in plan.removed.values() for name in names]
    if not units:
        rank_zero_warn(
            f"{by} removed nothing: its plan has no edits. Is the budget below one unit, or had surgeries before taken "
            "more than their part?"
        )
    there: Counter[str] = Counter()
    for group in plan.kept_groups:
        there[group.kind] += group.size
    params = ledger.plans[target].result.params if units else 0
    event = SurgeryEvent(
        by=by,
        target=target,
        epoch=trainer.current_epoch,
        step=trainer.global_step,
        units=tuple(units),
        params=params,
        macs=plan.result.macs,
        seconds=seconds,
        taken=dict(taken or {}),
        removed={kind: len(names) for kind, names in plan.removed.items()},
        there=dict(there),
        kept=kept,
    )
    ledger.events.append(event)
    if not units or trainer.state.fn != "fit":
        return
    metrics: dict[str, Any] = {"surgery/params": params}
    if plan.result.macs:  # counted on a sample; a plan made elsewhere may lack the number
        metrics["surgery/macs"] = plan.result.macs
    metrics["surgery/removed_units"] = ledger.removed_units
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=trainer.global_step)
    rank_zero_info(
        f"prunerecover: epoch {trainer.current_epoch}, removed {', '.join(shortened(units))}; {params:,} parameters "
        "left."
    )
    folder = artifact_folder(trainer)
    if folder is not None and trainer.is_global_zero:
        save_plan(folder, ledger, target)


def warn_of_launcher(trainer: pl.Trainer, ledger: Ledger) -> None:
    """Warn that a launcher with forked or spawned processes returns weights, but no structure.

    Lightning loads the weights with `strict=False`: the module in the process that called `fit` would stay dense, with
    untrained weights in the place of removed units, without any error.
    """
    if isinstance(trainer.strategy.launcher, _MultiProcessingLauncher) and not ledger.is_dense:
        best = getattr(trainer.checkpoint_callback, "best_model_path", "") or "a checkpoint"
        rank_zero_warn(
            "The model was pruned in processes that end with the fit; the module in the process that called fit stays "
            f"dense and is of no use now. Go on from {best}: load_pruned(path, YourModule), or ckpt_path=... in the "
            "next fit, validate, test or predict."
        )


def warn_of_missing(ledger: Ledger, there: Collection[str]) -> None:
    """Warn about callbacks that had begun in the run of a checkpoint, and are missing now.

    Args:
        ledger: Ledger of the module.
        there: Keys of the present callbacks.
    """
    missing = sorted(ledger.begun.keys() - set(there))
    if ledger.from_checkpoint and missing:
        rank_zero_warn(
            f"The checkpoint is of a run that also had {', '.join(missing)}, which this Trainer has not: surgeries "
            "still to come will not happen. Pass the same callbacks in the same order."
        )


def warn_of_untrained(network: nn.Module, by: str) -> None:
    """Warn if a network still has its initial values when a callback is about to prune."""
    instead = "train before: schedule=10 prunes at the start of epoch 10."
    if warning := said_of_untrained(network, f"{by} prunes", instead):
        rank_zero_warn(warning)
