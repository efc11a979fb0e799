"""The state of the optimizer across a surgery in the middle of a fit: kept, reset, or kept with less momentum.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.optimizer_state --seeds 0 1

ResNet-20 trains an epoch of 3,000 JPEGs of CIFAR-10, is narrowed by half of its MACs, reconstructed, and trained for
another epoch. Resumable: finished rows are not made again, and fits of a seed, optimizer and rate share the epoch
before the surgery, the plan and the reconstructed weights. Ten seconds a fit on a core.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn import Parameter
from torch.optim import Optimizer

from benchmarks.data.cifar import hits, training_images
from benchmarks.recovery.fits import OPTIMIZERS, Subject, fit, resnet, shuffled
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Table, across, ahead, figure, mean, text
from benchmarks.runner.plans import saved_plan
from benchmarks.runner.rows import CHECKPOINTS, Figure
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, RecoverySchedule, WidthPrune, plan_width
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.surgery.reconstruction import Reconstruction

FOLDER = CHECKPOINTS / "optimizer_state"
IMAGES, CALIBRATION, BATCH, TESTED, MACS = 3000, 128, 50, 5000, 0.5
BEFORE, EPOCHS = 1, 2  # epochs when the surgery comes, and of the whole fit
RATES = {"SGD": (0.005, 0.02, 0.05), "AdamW": (1e-4, 5e-4, 2e-3)}
SCHEDULES = {"constant": (), "`RecoverySchedule(lr=None)`": (partial(RecoverySchedule, lr=None),)}
STATES = ("kept", "reset", "scaled")
MOMENTA = ("momentum_buffer", "exp_avg")
KEPT: dict[str, Any] = {"method": "kept", "same": ("optimizer", "rate")}


class Surgeon(WidthPrune):
    """WidthPrune with a change of the optimizers' state after the surgery.

    Args:
        state: Change of the state, among `STATES`.
        reconstructed: File of the weights after reconstruction, which takes longer than the training and is the same
            for all fits of a seed, optimizer and rate.
        arguments: Arguments of WidthPrune.
    """

    def __init__(self, state: str, reconstructed: Path, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.recovery = Remembered(self)
        self.state, self.reconstructed, self.size, self.scale = state, reconstructed, 0.0, 1.0

    def before_surgery(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str) -> None:
        """Keep the weights in the optimizers' state, for surgery to narrow with the moments."""
        super().before_surgery(trainer, pl_module, target)
        if self.state == "scaled":
            self.size = sum(float(p.detach().square().sum()) for p in pl_module.parameters())
            for parameter, state in _states(trainer.optimizers):
                state["before"] = parameter.detach().clone()


class Remembered(Reconstruction):
    """Reconstruction shared by equal fits, and the change of the optimizers after it.

    Args:
        surgeon: Callback of the surgery.
    """

    def __init__(self, surgeon: Surgeon) -> None:
        super().__init__(None, surgeon.seed)
        self.surgeon = surgeon

    def recover(self, surgery: Surgery, plan: Plan, before: nn.Module | None) -> str:
        """Reconstruct the network, or load the reconstructed weights, and change the optimizers' state."""
        surgeon, module, said = self.surgeon, surgery.module, ""
        if surgeon.reconstructed.is_file():
            module.load_state_dict(torch.load(surgeon.reconstructed))
        else:
            said = super().recover(surgery, plan, before)
            torch.save(module.state_dict(), surgeon.reconstructed)
        if surgeon.state == "reset":
            for optimizer in surgery.trainer.optimizers:
                optimizer.state.clear()
        elif surgeon.state == "scaled":
            surgeon.scale = scale_momentum(surgery.trainer.optimizers, surgeon.size)
        return said


def scale_momentum(optimizers: Iterable[Optimizer], size: float) -> float:
    """Multiply momenta by one minus the relative change of the weights (Zimmer 2023, arXiv 2111.00843), at least zero.

    Returns the factor.

    Args:
        optimizers: Optimizers with the earlier weights in the state.
        size: Sum of squares of all weights before the surgery; removed weights count as zero afterwards.
    """
    change = size
    for parameter, state in _states(optimizers):
        before = state.pop("before")
        change += float((parameter.detach() - before).square().sum() - before.square().sum())
    share = max(0.0, 1 - (change / size) ** 0.5)
    for _, state in _states(optimizers):
        for name in MOMENTA:
            if state.get(name) is not None:
                state[name].mul_(share)
    return float(share)


def _states(optimizers: Iterable[Optimizer]) -> list[tuple[Parameter, dict[str, Any]]]:
    return [item for optimizer in optimizers for item in optimizer.state.items()]


@dataclass(frozen=True)
class Shared:
    """Epoch before the surgery, shared by fits of a seed, optimizer and rate, with files beside the checkpoint."""

    seed: int
    optimizer: str
    rate: float

    @property
    def subject(self) -> Subject:
        """Network and data."""
        return resnet(
            "ResNet-20",
            text="",
            loader=lambda seed: shuffled(training_images(IMAGES, self.seed), BATCH),
            optimizer=OPTIMIZERS[self.optimizer],
            scores=lambda network: hits(network, n=TESTED),
            rates=RATES[self.optimizer],
        )

    @property
    def begun(self) -> Path:
        """Checkpoint of the first epoch."""
        path = FOLDER / f"{self.optimizer}-{self.rate}-{self.seed}.ckpt"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            fit(self.subject, self.rate, BEFORE, self.seed, (), save=path)
        return path

    def plan(self) -> Plan:
        """Return the plan after the first epoch."""
        network, weights = load("ResNet-20"), torch.load(self.begun, weights_only=True)["state_dict"]
        network.load_state_dict({name.removeprefix("net."): value for name, value in weights.items()})
        images = (tensor[:CALIBRATION].split(64) for tensor in training_images(IMAGES, self.seed))
        batches = list(zip(*images, strict=True))
        return plan_width(network.eval(), Budget(macs=MACS), batches=batches, seed=self.seed)


def measure(seed: int, optimizer: str, rate: float, schedule: str, method: str) -> dict[str, Any]:
    """Prune and train on with a state of the optimizer, and score."""
    shared = Shared(seed, optimizer, rate)
    surgeon = Surgeon(
        method,
        shared.begun.with_suffix(".pt"),
        plan=saved_plan(shared.begun.stem, shared.plan, FOLDER),
        schedule=BEFORE,
        calibration=CALIBRATION,
        merge="never",
        seed=seed,
    )
    callbacks = [surgeon, *(make() for make in SCHEDULES[schedule])]
    network = fit(shared.subject, rate, EPOCHS, seed + 1000, callbacks, resume=shared.begun)
    return {"top1": Figure.of(shared.subject.scores(network)), "momentum": surgeon.scale}


BENCHMARK = Benchmark(
    name="optimizer_state",
    doc=__doc__,
    title="The optimizer's state across a surgery",
    text=f"""ResNet-20, {BEFORE} epoch of {IMAGES:,} JPEGs of CIFAR-10, then half of its MACs out in width and the
    layers reconstructed, then {EPOCHS - BEFORE} epoch more, in batches of {BATCH}, half of them mirrored: SGD with
    momentum 0.9 and weight decay 0.0005, AdamW with weight decay 0.01, at one rate before and after the surgery. Kept:
    what stays keeps its momentum and moments, cut as the weights are. Reset: the state starts anew. Scaled: kept, and
    momentum (Adam's first moment) times one minus the relative change of all weights by the surgery (Zimmer 2023, arXiv
    2111.00843). Top-1 in percent on {TESTED:,} test JPEGs, the mean over the seeds; ahead: on the same images, with the
    paired 95% interval over images, which says nothing of other seeds.""",
    measure=measure,
    axes={
        "seed": Axis((0,), open=True),
        "optimizer": Axis(tuple(RATES)),
        "schedule": Axis(tuple(SCHEDULES)),
        "rate": Axis(tuple(sorted(rate for rates in RATES.values() for rate in rates)), open=True),
        "method": Axis(STATES, "--states"),
    },
    skipped=lambda seed, optimizer, schedule, rate, method: rate not in RATES[optimizer],
    tables=(
        Table(
            [
                text("optimizer"),
                text("rate", "", "{:g}"),
                Column("seeds", lambda line: str(len(line.only(method="kept").rows))),
                *across("method", STATES, [figure("top1", "{}", 1, 100, ends=False)]),
                *across("method", STATES[1:], [ahead("top1", "{} ahead of kept by", 1, 100, turned=True, **KEPT)]),
                *across("method", STATES[2:], [mean("momentum", "momentum times", "{:.2f}")]),
            ],
            title="After the surgery: {schedule}",
            by=("schedule",),
            line=("optimizer", "rate"),
        ),
    ),
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
