"""Tell the user's loggers and console about a surgery, and note it in the ledger."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_info

from prunerecover.callbacks.ledger import Ledger
from prunerecover.plan import Plan


def announce(trainer: pl.Trainer, ledger: Ledger, by: str, plan: Plan) -> None:
    """Record one surgery.

    Args:
        trainer: Whose loggers are told (units removed, parameters, MACs per calibration batch).
        ledger: Where the event is kept, so that a resumed run knows it happened.
        by: Which callback did it.
        plan: What was done.
    """
    units = [name for names in plan.removed.values() for name in names]
    event = {
        "by": by,
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
        "units": units,
        "params": plan.result.params,
        "macs": plan.result.macs,
    }
    ledger.events.append(event)
    removed = sum(len(e["units"]) for e in ledger.events)
    for logger in trainer.loggers:
        logger.log_metrics(
            {"surgery/removed_units": removed, "surgery/params": plan.result.params, "surgery/macs": plan.result.macs},
            step=trainer.global_step,
        )
    rank_zero_info(
        f"prunerecover: epoch {trainer.current_epoch}, removed {', '.join(units) or 'nothing'}; "
        f"{plan.result.params:,} parameters left."
    )
