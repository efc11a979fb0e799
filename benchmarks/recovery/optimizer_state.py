"""The state of the optimizer across a surgery in the middle of a fit: kept, reset, or kept with less momentum.

    PRUNERECOVER_DATA=... python -m benchmarks.recovery.optimizer_state --seeds 0 1

ResNet-20 trains an epoch of 3,000 JPEGs of CIFAR-10, loses half of its MACs in width, is reconstructed, and trains
another epoch. Resumable: rows that are there are not made again, and fits of one seed, optimizer and rate share the
epoch before the surgery, the plan and the reconstructed weights. Ten seconds a fit on a core.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.nn import Parameter
from torch.optim import Optimizer

from benchmarks.data.cifar import hits, training_images
from benchmarks.data.real import CHECKPOINTS, RESULTS, kept_plan, made_by, parser, write
from benchmarks.depth.graph_depth_rows import add, difference, measured, rows_so_far, without_samples
from benchmarks.recovery.fits import Classifier, fit
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, RecoverySchedule, WidthPrune, plan_width
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.surgery.reconstruction import Reconstruction
from prunerecover.display.markdown import table

NAME = "optimizer_state"
ROWS, FOLDER = RESULTS / f"{NAME}.rows.jsonl", CHECKPOINTS / NAME
IMAGES, CALIBRATION, BATCH, TESTED, MACS = 3000, 128, 50, 5000, 0.5
BEFORE, EPOCHS = 1, 2  # epochs when the surgery comes, and of the whole fit
RATES = {"SGD": (0.005, 0.02, 0.05), "AdamW": (1e-4, 5e-4, 2e-3)}
SCHEDULES = {"constant": (), "`RecoverySchedule(lr=None)`": (partial(RecoverySchedule, lr=None),)}
STATES = ("kept", "reset", "scaled")
MOMENTA = ("momentum_buffer", "exp_avg")
Row = dict[str, Any]


class Surgeon(WidthPrune):
    """WidthPrune that does something to the state of the optimizers when all of the surgery is done.

    Args:
        state: What is done, one of `STATES`.
        reconstructed: File of the weights after reconstruction, which takes longer than the training and is the same
            for all fits of a seed, optimizer and rate.
        arguments: Of WidthPrune.
    """

    def __init__(self, state: str, reconstructed: Path, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.recovery = Remembered(self)
        self.state, self.reconstructed, self.size, self.scale = state, reconstructed, 0.0, 1.0

    def before_surgery(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str) -> None:
        """Note the weights in the state, where they lose the same entries."""
        super().before_surgery(trainer, pl_module, target)
        if self.state == "scaled":
            self.size = sum(float(p.detach().square().sum()) for p in pl_module.parameters())
            for parameter, state in _states(trainer.optimizers):
                state["before"] = parameter.detach().clone()


class Remembered(Reconstruction):
    """Reconstruction that is done once for all fits alike, and what is done to the optimizers after it.

    Args:
        surgeon: Callback whose surgery it is.
    """

    def __init__(self, surgeon: Surgeon) -> None:
        super().__init__(None, surgeon.seed)
        self.surgeon = surgeon

    def recover(self, surgery: Surgery, plan: Plan, before: nn.Module | None) -> str:
        """Reconstruct the network, or load what is there, and change the optimizers' state."""
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

    Returns that factor.

    Args:
        optimizers: With the weights from before in their state.
        size: Sum of squares of all weights before the surgery; those that went have changed to zero.
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


def recovered(optimizer: str, rate: float, state: str, schedules: Iterable[Any], seed: int) -> tuple[nn.Module, float]:
    """Return the network after the fit, and what momenta were multiplied with.

    The epoch before the surgery is read, if an earlier fit had the same.
    """
    images, labels = training_images(IMAGES, seed)
    begun = FOLDER / f"{optimizer}-{rate}-{seed}.ckpt"
    how: dict[str, Any] = {"data": (images, labels), "batch": BATCH}
    if not begun.is_file():
        begun.parent.mkdir(parents=True, exist_ok=True)
        fit(Classifier(load("ResNet-20"), optimizer, rate), callbacks=(), epochs=BEFORE, save=begun, seed=seed, **how)

    def plan() -> Plan:
        network = load("ResNet-20")
        weights = torch.load(begun, weights_only=True)["state_dict"]
        network.load_state_dict({name.removeprefix("net."): value for name, value in weights.items()})
        batches = list(zip(images[:CALIBRATION].split(64), labels[:CALIBRATION].split(64), strict=True))
        return plan_width(network.eval(), Budget(macs=MACS), batches=batches, seed=seed)

    surgeon = Surgeon(
        state,
        begun.with_suffix(".pt"),
        plan=kept_plan(begun.with_suffix(".json"), plan),
        schedule=BEFORE,
        calibration=CALIBRATION,
        merge="never",
        seed=seed,
    )
    callbacks = [surgeon, *(schedule() for schedule in schedules)]
    module = Classifier(load("ResNet-20"), optimizer, rate)
    network = fit(module, callbacks=callbacks, epochs=EPOCHS, resume=begun, seed=seed + 1000, **how)
    return network, surgeon.scale


def main() -> None:
    """Add rows that are missing, and write the page."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, nargs="*", default=[])
    options.add_argument("--rates", type=float, nargs="*", help="of SGD and AdamW; all if left out")
    options.add_argument("--schedules", nargs="*", choices=list(SCHEDULES), default=list(SCHEDULES))
    asked = options.parse_args()
    torch.set_num_threads(1)
    for seed, (optimizer, rates), schedule in product(asked.seeds, RATES.items(), asked.schedules):
        for rate, state in product([rate for rate in rates if rate in (asked.rates or rates)], STATES):
            what = {"optimizer": optimizer, "rate": rate, "state": state, "schedule": schedule}
            if not rows_so_far(ROWS, seed=seed, **what):
                network, scale = recovered(optimizer, rate, state, SCHEDULES[schedule], seed)
                row = measured(hits(network, n=TESTED), seed, **what, momentum=scale)
                print(without_samples(add(row, ROWS)), flush=True)
                page()
    page()


def page() -> None:
    """Write the page of the rows that are there."""
    rows = rows_so_far(ROWS)
    lines = ["# The optimizer's state across a surgery", "", *made_by(sorted({row["command"] for row in rows})), TEXT]
    for schedule in SCHEDULES:
        own = [row for row in rows if row["schedule"] == schedule]
        cells = [_cells(own, optimizer, rate) for optimizer, rates in RATES.items() for rate in rates]
        lines += ["", f"## After the surgery: {schedule}", "", table(HEAD, [cell for cell in cells if cell])]
    write(NAME, {"rows": [without_samples(row) for row in rows]}, "\n".join(lines))


HEAD = (
    "optimizer",
    "rate",
    "seeds",
    "kept",
    "reset",
    "scaled",
    "reset ahead of kept by",
    "scaled ahead of kept by",
    "momentum times",
)
TEXT = (
    f"ResNet-20, {BEFORE} epoch of {IMAGES:,} JPEGs of CIFAR-10, then half of its MACs out in width and the layers "
    f"reconstructed, then {EPOCHS - BEFORE} epoch more, in batches of {BATCH}, half of them mirrored: SGD with "
    "momentum 0.9 and weight decay 0.0005, AdamW with weight decay 0.01, at one rate before and after the surgery. "
    "Kept: what stays keeps its momentum and moments, cut as the weights are. Reset: the state starts anew. Scaled: "
    "kept, and momentum (Adam's first moment) times one minus the relative change of all weights by the surgery "
    f"(Zimmer 2023, arXiv 2111.00843). Top-1 in percent on {TESTED:,} test JPEGs, the mean over the seeds; ahead: on "
    "the same images, with the paired 95% interval over images, which says nothing of other seeds."
)


def _cells(rows: list[Row], optimizer: str, rate: float) -> tuple[str, ...]:
    of = {
        state: [r for r in rows if (r["optimizer"], r["rate"], r["state"]) == (optimizer, rate, state)]
        for state in STATES
    }
    if not all(of.values()):
        return ()
    means = [_mean(found) for found in of.values()]
    ahead = [difference(of[state], of["kept"], 100, 1) for state in STATES[1:]]
    times = np.mean([row["momentum"] for row in of["scaled"]])
    return (optimizer, f"{rate:g}", str(len(of["kept"])), *means, *ahead, f"{times:.2f}")


def _mean(rows: list[Row]) -> str:
    each = [100 * row["value"] for row in sorted(rows, key=lambda row: int(row["seed"]))]
    return f"{np.mean(each):.1f}" + (f" ({', '.join(f'{value:.1f}' for value in each)})" if len(each) > 1 else "")


if __name__ == "__main__":
    main()
