"""The surgery contract: a resumed fit equals an uninterrupted one, with any pruning, recovery and training.

A new callback gets a line in `CASES`; `test_every_step.py` resumes from the file of every step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.fits.routed_lora import Language, batches, shared
from cases.lora import depth, lora, width
from cases.models.habits import (
    Compiled,
    Filtered,
    Manual,
    NamedGroups,
    Plain,
    TwoNetworks,
    TwoOptimizers,
    Unaugmented,
    WrappedCompiled,
    loader,
)
from cases.trainers import assert_same, every_epoch, fit
from cases.width.narrow import neuron_edit
from cases.width.narrow_fits import CNN, RESIDUAL, VIT, Cnn, NarrowAt, ResidualCnn
from cases.width.width_prune import Classifier, rows
from lightning.pytorch.callbacks import EMAWeightAveraging

from prunerecover import Budget, DepthPrune, DistillRecover, Prune, RecoverySchedule
from prunerecover.callbacks.ledger.ledger import Ledger

Vit = partial(Plain, depth=3, num_heads=4)
HALF = Budget(macs=0.5)
STEPWISE = {
    "remove": {"attention": 2, "activation": 1},
    "schedule": {"start": 1, "every": 1, "step": 1},
}
ONE_BLOCK = {"remove": {"block": 1}, "ignore": ["blocks.0"]}
TWO_BLOCKS = {**ONE_BLOCK, "remove": {"block": 2}, "schedule": {"start": 1, "every": 1, "step": 1}}


@dataclass(frozen=True)
class Case:
    """Fit of four epochs, and the epochs to resume after."""

    callbacks: Callable[[], list[pl.Callback]]
    make: Callable[[], pl.LightningModule] = Plain
    files: tuple[int, ...] = (1,)
    data: Callable[..., Any] = partial(loader, 24)
    settings: dict[str, Any] = field(default_factory=dict)
    leaves: str = ""
    """An operation that must be in its plans, by name."""


def best(**arguments: Any) -> DepthPrune:
    """Ranked by the default importance, with fitted replacements."""
    return depth(importance="output_divergence", merge="never", **arguments)


def joint() -> Prune:
    kinds = ("attention", "neuron")
    return Prune(Budget(macs=0.3), kinds=kinds, calibration=24, schedule={"start": 1})


def averaged(*callbacks: pl.Callback) -> list[pl.Callback]:
    return [*callbacks, EMAWeightAveraging(decay=0.9)]


def routed() -> list[pl.Callback]:
    return [shared(Language().net, dropout=0.1)]


class DroppingLanguage(Language):
    def __init__(self) -> None:
        super().__init__(attention_dropout=0.1)


NARROWED = {"make": Cnn, "files": (0, 2)}
HEADS = {"make": Vit, "files": (1,)}
BATCHNORM = {"make": Classifier, "data": rows}

CASES = {
    "depth and its teacher, on a plateau": Case(
        lambda: [best(schedule={"start": 2}), DistillRecover()], lambda: Plain("adamw", "plateau"), (1, 2)
    ),
    "two surgeons under manual optimization": Case(
        lambda: [depth(), depth(remove={"activation": 1}, schedule={"start": 2})], Manual, (1,)
    ),
    "depth, width, adapters and a teacher": Case(
        lambda: [lora(), depth(), width(schedule={"start": 2}), DistillRecover()]
    ),
    "scores that draw noise": Case(
        lambda: [width(schedule={"start": 2}, importance="gate_taylor", replace="calibrated")]
    ),
    "cached answers of the teacher": Case(
        lambda: [depth(schedule={"start": 1}), DistillRecover(cache=True)], Unaugmented, (2,)
    ),
    "narrowed, one cycle": Case(lambda: [NarrowAt(CNN)], lambda: Cnn("sgd", "onecycle"), (0, 2)),
    "multiples of 8 channels, BatchNorm": Case(
        lambda: [width(budget=HALF, round_to={"channel": 8}, calibration=24)], **BATCHNORM
    ),
    "a warm-up that takes longer than an epoch": Case(lambda: [depth(), RecoverySchedule(9)]),
}

SLOW_CASES = {
    "depth step by step, and its teacher": Case(lambda: [best(**STEPWISE), DistillRecover()], files=(0, 2)),
    "features of the teacher": Case(lambda: [best(), DistillRecover(features=True)], files=(1, 2)),
    "two optimizers": Case(lambda: [depth()], TwoOptimizers, (0, 1)),
    "compiled": Case(lambda: [depth()], Compiled, (0, 1)),
    **{
        f"{optimizer} and {scheduler}": Case(lambda: [depth()], partial(Plain, optimizer, scheduler))
        for optimizer, scheduler in (("adamw", "onecycle"), ("sgd", "cosine"), ("sgd", "plateau"))
    },
    "gradients of two batches": Case(lambda: [depth()], files=(0, 1), settings={"accumulate_grad_batches": 2}),
    "averaged weights": Case(lambda: averaged(depth()), files=(0, 1, 2)),
    "merged at the surgery": Case(lambda: [depth(remove={"activation": 2}, merge="at_surgery")], files=(0, 1)),
    "maps of a block, averaged weights": Case(lambda: averaged(best(**ONE_BLOCK)), files=(0, 2), leaves="fold"),
    "a block, and blocks that learn its stream, averaged weights": Case(
        lambda: averaged(best(**ONE_BLOCK, reconstruct="blocks")), files=(0, 2), leaves="refit"
    ),
    "maps of two blocks": Case(lambda: [best(**TWO_BLOCKS)], files=(0, 2), leaves="fold"),
    "two networks": Case(
        lambda: [
            depth(target="net", merge="copy"),
            depth(target="other", remove={"activation": 1}, schedule={"start": 2}, merge="copy"),
            DistillRecover(target="net"),
            DistillRecover(target="other"),
        ],
        TwoNetworks,
        (1, 2),
    ),
    "half of the MACs, BatchNorm, and a teacher": Case(
        lambda: [width(budget=HALF, calibration=24), DistillRecover()], **BATCHNORM
    ),
    "depth and width in one budget": Case(lambda: [joint()], partial(Classifier, "vit"), (0, 1), rows),
    "a rewritten shortcut": Case(lambda: [NarrowAt(RESIDUAL)], ResidualCnn, (0, 1, 2)),
    "heads and neurons": Case(lambda: [NarrowAt(VIT)], **HEADS),
    "depth behind heads and neurons": Case(
        lambda: [NarrowAt(VIT), best(schedule={"start": 3}, ignore="blocks.1.attn")], Vit, (1, 2)
    ),
    "narrowed and compiled": Case(lambda: [NarrowAt({1: (neuron_edit(),)})], Compiled, (0, 1)),
    "narrowed, features of the teacher": Case(lambda: [NarrowAt(VIT), DistillRecover(features=True)], **HEADS),
    "narrowed, averaged weights": Case(lambda: averaged(NarrowAt(CNN)), **NARROWED),
    **{
        f"adapters, {name}": Case(lambda: [lora(start=1), depth(schedule={"start": 2})], make, (0, 1))
        for name, make in {
            "manual optimization": Manual,
            "two optimizers": TwoOptimizers,
            "compiled inside a wrapper": WrappedCompiled,
            "groups by name": NamedGroups,
            "an optimizer of what trains": Filtered,
        }.items()
    },
    "adapters, averaged weights": Case(lambda: averaged(lora(start=1), depth(schedule={"start": 2})), files=(0, 1)),
    "rates after each of two surgeries, averaged weights": Case(
        lambda: averaged(RecoverySchedule(shape="cosine"), depth(**STEPWISE)), files=(0, 1, 2)
    ),
    "rates after a surgery, gradients of four batches": Case(
        lambda: [depth(), RecoverySchedule(3, lr=None)],
        partial(Plain, "sgd", "onecycle"),
        settings={"accumulate_grad_batches": 4},
    ),
    "rates after a surgery, manual optimization": Case(lambda: [RecoverySchedule(9), depth()], Manual, (0, 1)),
    "rates of adapters, on a plateau": Case(
        lambda: [lora(start=1), depth(schedule={"start": 2}), RecoverySchedule()],
        partial(Plain, "adamw", "plateau"),
        (1, 2),
    ),
    "adapters of routes": Case(routed, DroppingLanguage, (0,), batches),
}


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_CASES)])
def test_resumed_equals_uninterrupted(name: str, tmp_path: Path) -> None:
    case = {**CASES, **SLOW_CASES}[name]

    def run(folder: Path, resume: Path | None = None) -> tuple[pl.LightningModule, pl.Trainer]:
        module = case.make()
        data = {"data": case.data(), "val": case.data(shuffle=False)}
        callbacks = [*case.callbacks(), every_epoch(folder)]
        return module, fit(folder, module, *callbacks, epochs=4, resume=resume, **data, **case.settings)

    whole, runner = run(tmp_path / "whole")
    assert Ledger.of(whole).events or Ledger.of(whole).adapters
    assert case.leaves in {"", *(edit.op for plan in Ledger.of(whole).plans.values() for edit in plan.edits)}
    for epoch in case.files:
        part, again = run(tmp_path / f"from{epoch}", tmp_path / "whole" / f"epoch={epoch}.ckpt")
        assert_same(whole, part)
        assert_same_states(runner, again)
        for kept in ("removed_units", "adapters", "places"):
            assert getattr(Ledger.of(part), kept) == getattr(Ledger.of(whole), kept)


def assert_same_states(left: pl.Trainer, right: pl.Trainer) -> None:
    for one, other in zip(left.optimizers, right.optimizers, strict=True):
        states = (list(optimizer.state_dict()["state"].values()) for optimizer in (one, other))
        for a, b in zip(*states, strict=True):
            assert a.keys() == b.keys()
            assert all(torch.equal(torch.as_tensor(a[name]), torch.as_tensor(b[name])) for name in a)
