"""Fits of transformers' Trainer on two CPU ranks of torchrun: transformers_ranks.py RESULT.json FOLDER ..."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cases.fits.ranks import run_scenarios
from cases.fits.transformers_fits import depth, fit, images, llama, resnet
from cases.two_ranks import digest
from transformers import TrainerCallback

from prunerecover import Budget, DistillRecover, LoRARecover, WidthPrune
from prunerecover.callbacks.ledger.callback import LedgerCallback

torch.set_num_threads(1)
SETTINGS = {"num_train_epochs": 4, "optim": "sgd", "learning_rate": 0.1, "logging_steps": 1}


def steady() -> Any:
    """Return a Llama in double precision without dropout, where rounding errors stay small."""
    return llama(attention_dropout=0.0).double()


def callbacks() -> list[LedgerCallback]:
    return [depth(importance="output_divergence"), DistillRecover()]


def adapting() -> list[LedgerCallback]:
    return [depth(schedule=2), LoRARecover(rank=2, start=1)]


def narrowing() -> list[LedgerCallback]:
    return [WidthPrune(Budget(macs=0.4), schedule=1, calibration=16, importance="magnitude")]


class Agreement(TrainerCallback):
    """Counts the steps with equal weights on the ranks afterwards."""

    def __init__(self) -> None:
        self.steps = self.agreed = 0

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, digest(model))
        self.steps += 1
        self.agreed += all(each == everyone[0] for each in everyone)


def ranks(folder: Path, make: Any = callbacks, **settings: Any) -> dict[str, Any]:
    """Return the results of a fit, and of a fit resumed from the second epoch."""
    found = {}
    for name, resume in (("whole", None), ("resumed", folder / "whole" / "checkpoint-8")):
        agreement = Agreement()
        how = {"model": steady, **SETTINGS, **settings, "callbacks": [agreement]}
        trainer = fit(folder / name, *make(), resume=resume, **how)  # type: ignore[arg-type]
        found[name] = {"steps": agreement.steps, "agreed": agreement.agreed, "digest": digest(trainer.model)}
        if dist.get_rank() == 0:
            torch.save(trainer.model.state_dict(), folder / f"{name}.pt")
    return found


if __name__ == "__main__":
    run_scenarios(
        {
            "depth": ranks,
            "accumulated": partial(ranks, gradient_accumulation_steps=2, num_train_epochs=8),
            "adapters": partial(ranks, make=adapting),
            "width": partial(ranks, make=narrowing, model=resnet, data=images),
        }
    )
