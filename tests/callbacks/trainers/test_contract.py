"""The surgery contract in transformers' Trainer: resumed and uninterrupted fits are equal, with any callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.fits.transformers_fits import STEPS, depth, fit, images, llama, resnet, texts, vit
from cases.trainers import assert_same

from prunerecover import Budget, DistillRecover, LoRARecover, Prune, RecoverySchedule, WidthPrune
from prunerecover.callbacks.ledger.callback import LedgerCallback
from prunerecover.callbacks.ledger.ledger import Ledger


@dataclass(frozen=True)
class Case:
    """Fit of three epochs of eight steps, and the checkpoints to resume from."""

    callbacks: Callable[[], list[LedgerCallback]]
    model: Callable[[], Any] = llama
    data: Callable[..., Any] = texts
    steps: tuple[int, ...] = (STEPS, 2 * STEPS)
    settings: dict[str, Any] = field(default_factory=dict)


OFTEN = {"save_strategy": "steps", "save_steps": 3}
TWICE = {"start": 4, "every": 9, "times": 2, "by": "step"}
AT_STEPS = {"start": 4, "every": 7, "step": 1, "by": "step"}
IMAGES = {"data": images}
CASES = {
    "within an epoch": Case(lambda: [depth(schedule=AT_STEPS), DistillRecover()], steps=(3, 12), settings=OFTEN),
    "channels of a network with BatchNorm": Case(
        lambda: [WidthPrune(Budget(macs=0.4), schedule=1, calibration=16, importance="magnitude")], resnet, **IMAGES
    ),
}
SLOW_CASES = {
    "step by step": Case(lambda: [DistillRecover(), depth(importance="output_divergence")], steps=(2 * STEPS,)),
    "three batches": Case(lambda: [depth(), DistillRecover()], steps=(6,), settings={"gradient_accumulation_steps": 3}),
    "depth and width in one budget": Case(
        lambda: [Prune(Budget(macs=0.3), kinds=("attention", "neuron"), calibration=16, schedule=1)], vit, **IMAGES
    ),
    "half of the MACs at two steps": Case(
        lambda: [WidthPrune(Budget(macs=0.5), schedule=TWICE, calibration=16, importance="taylor")],
        resnet,
        images,
        (3, 12, 15),
        OFTEN,
    ),
    "adapters": Case(lambda: [LoRARecover(rank=2, start=1), depth(schedule=2)]),
    "rates after a surgery": Case(lambda: [depth(schedule=1), RecoverySchedule()]),
    "answers of the teacher out of a cache": Case(lambda: [depth(), DistillRecover(cache=True)]),
    "bfloat16": Case(lambda: [depth(), DistillRecover()], settings={"bf16": True}),
    "compiled": Case(lambda: [depth(), DistillRecover()], settings={"torch_compile_backend": "eager"}),
    "a plateau": Case(
        lambda: [depth()], settings={"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}
    ),
    "checkpointed activations": Case(lambda: [depth(), DistillRecover()], settings={"gradient_checkpointing": True}),
    "a loss of the user's own": Case(
        lambda: [depth(), DistillRecover()],
        settings={"compute_loss_func": lambda outputs, labels, num_items_in_batch=None: outputs.logits.square().mean()},
    ),
    "smoothing": Case(lambda: [depth(importance="taylor"), DistillRecover()], settings={"label_smoothing_factor": 0.1}),
}


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_CASES)])
def test_resumed_equals_uninterrupted(name: str, tmp_path: Path) -> None:
    case = {**CASES, **SLOW_CASES}[name]
    run = partial(fit, model=case.model, data=case.data, **case.settings)
    whole = run(tmp_path / "whole", *case.callbacks())
    ledger = Ledger.of(whole.pruning.module)
    assert ledger.events
    for step in case.steps:
        again = run(tmp_path / str(step), *case.callbacks(), resume=tmp_path / "whole" / f"checkpoint-{step}")
        assert_same(whole.model, again.model)
        assert_same_states(whole, again)
        assert [event.units for event in Ledger.of(again.pruning.module).events] == [e.units for e in ledger.events]


def assert_same_states(left: Any, right: Any) -> None:
    """Moments of the optimizers and rates of the schedulers."""
    one, other = (trainer.optimizer.state_dict()["state"] for trainer in (left, right))
    assert one.keys() == other.keys()
    for number, state in one.items():
        assert all(torch.equal(torch.as_tensor(v), torch.as_tensor(other[number][k])) for k, v in state.items())
    assert left.lr_scheduler.state_dict() == right.lr_scheduler.state_dict()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fits")


@pytest.fixture(scope="module")
def pruned(folder: Path) -> Any:
    """A fit of three epochs of three steps each, with surgeries from the second epoch on."""
    return fit(folder / "pruned", depth(replace="zero"), DistillRecover(), gradient_accumulation_steps=3)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    return fit(folder / "plain", gradient_accumulation_steps=3)


@pytest.mark.usefixtures("pruned", "plain")
def test_it_trains_as_ever_until_the_surgery(folder: Path) -> None:
    first, second = (torch.load(folder / run / "checkpoint-3" / "optimizer.pt") for run in ("pruned", "plain"))
    for number, state in first["state"].items():
        assert all(torch.equal(value, second["state"][number][name]) for name, value in state.items())


def test_the_schedule_of_rates_goes_on(pruned: Any, plain: Any) -> None:
    rates = [[log["learning_rate"] for log in t.state.log_history if "learning_rate" in log] for t in (pruned, plain)]
    assert rates[0] == rates[1] != []


def test_moments_outlive_the_surgery(pruned: Any) -> None:
    """Remaining parameters were stepped in all steps, and every parameter has an optimizer."""
    held = {p for group in pruned.optimizer.param_groups for p in group["params"]}
    assert held == set(pruned.model.parameters())
    assert {int(state["step"]) for state in pruned.optimizer.state.values()} == {9}
