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
    """Record one surgery; within a fit also tell the loggers and the console, and write a plan file.

    Its units are named as in the network right before it. In the plan file, which holds all surgeries so far, and in
    reports they are named as in the dense network.

    Args:
        trainer: Whose loggers are told (units removed, parameters, MACs per calibration sample).
        ledger: Where the event is kept, so that a resumed run knows it happened.
        by: Which callback did it.
        target: Path of the network.
        plan: What was done, before any merging.
        seconds: That it took to decide; None if that was done elsewhere.
        taken: Of the budget that surgeries share; see `budget_used`.
        kept: Of what was tried on the pruned network; see `Kept`.
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
    if plan.result.macs:  # counted on a sample; plans that were made elsewhere may not say
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
    """Warn that a launcher that forks or spawns brings back weights, but no structure.

    Lightning loads them with `strict=False`: the module in the process that called `fit` would stay dense, with the
    weights of what was removed untrained, and nothing would say so.
    """
    if isinstance(trainer.strategy.launcher, _MultiProcessingLauncher) and not ledger.is_dense:
        best = getattr(trainer.checkpoint_callback, "best_model_path", "") or "a checkpoint"
        rank_zero_warn(
            "The model was pruned in processes that end with the fit; the module in the process that called fit stays "
            f"dense and is of no use now. Go on from {best}: load_pruned(path, YourModule), or ckpt_path=... in the "
            "next fit, validate, test or predict."
        )


def warn_of_missing(ledger: Ledger, there: Collection[str]) -> None:
    """Warn of callbacks that had begun in the run of a checkpoint, and are not there now.

    Args:
        ledger: Ledger of the module.
        there: Keys of the callbacks that are there.
    """
    missing = sorted(ledger.begun.keys() - set(there))
    if ledger.from_checkpoint and missing:
        rank_zero_warn(
            f"The checkpoint is of a run that also had {', '.join(missing)}, which this Trainer has not: surgeries "
            "still to come will not happen. Pass the same callbacks in the same order."
        )


def warn_of_untrained(network: nn.Module, by: str) -> None:
    """Warn if a network is as it was initialised when a callback is about to prune it."""
    instead = "train before: schedule=10 prunes at the start of epoch 10."
    if warning := said_of_untrained(network, f"{by} prunes", instead):
        rank_zero_warn(warning)
