"""The natural call of each callback at one budget: depth, width and both, on real DeiT-Tiny and ResNet-56.

    PRUNERECOVER_DATA=... python -m benchmarks.end_to_end.natural_call
    PRUNERECOVER_DATA=... python -m benchmarks.end_to_end.natural_call --subject resnet56 --budgets 0.33 --costs macs

Every callback is given a budget and nothing else, in a fit of one short epoch with distillation: 1,000 images of
tiny_imagenet for DeiT-Tiny, 5,000 of CIFAR-10 for ResNet-56. The network is scored right after the surgery
(prune_only) and at the end (recovered), on all 5,000 and 10,000 test images. Shares of cost are those of the merged
network; latency is the median of interleaved pairs on the threads that PyTorch uses: with one (OMP_NUM_THREADS=1) other
work on the machine does not count. `--retime` measures the latency of rows by MACs again, of networks without as many
units of each kind, drawn at random. Resumable: rows that are in the results are not made again. A row of DeiT-Tiny
takes between a quarter of an hour and an hour on two cores, most of it planning.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
from rich.progress import track
from torch import Tensor, nn

from benchmarks.data.real import DEVICE, accuracy, commands_so_far, parser, stored, write
from benchmarks.end_to_end.natural_call_page import Row, markdown
from benchmarks.end_to_end.natural_call_subjects import SUBJECTS, Subject
from benchmarks.runner.rows import Results
from prunerecover import Budget, apply_plan, merge, plan_depth
from prunerecover.boundary.feasible import TYPES
from prunerecover.callbacks import DepthPrune, DistillRecover, Prune, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.cost.environment import device_name
from prunerecover.cost.latency import latency_ratio
from prunerecover.cost.macs import count_macs
from prunerecover.depth.family_planner import FamilyPlanner
from prunerecover.session.session import Session

NAME = "natural_call"
BUDGETS, COSTS = (0.20, 0.33, 0.50), ("macs", "latency")
BOUNDARY = "e prunerecover (default)"  # among the rows of boundary_dpt
PAIRS = 40
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def even_split(subject: Subject, budget: Budget) -> DepthPrune:
    """Remove as many attentions as activations: the least number whose parts of the cost add up to the budget."""
    assert budget.share is not None
    cost, share = budget.share
    planner = FamilyPlanner(Session(subject.dense(), [subject.example]), TYPES)
    pair = sum(planner.share_of_one(kind, cost) for kind in TYPES)
    return DepthPrune(remove=dict.fromkeys(TYPES, max(1, -int(-share // pair))))


def boundary_split(subject: Subject, budget: Budget) -> DepthPrune:
    """Remove as many attentions and activations as BoundaryDPT's map picked for this share of the latency."""
    assert budget.share is not None
    (row,) = Results.read("boundary_dpt").find(method=BOUNDARY, stage="recovered", budget=budget.share[1])
    return DepthPrune(remove={kind: len(names) for kind, names in row["removed"].items()})


METHODS: Mapping[str, Callable[[Subject, Budget], PruneCallback]] = {
    "Prune (joint)": lambda _, budget: Prune(budget),
    "WidthPrune default": lambda _, budget: WidthPrune(budget),
    "DepthPrune default": lambda _, budget: DepthPrune(budget),
    "one-shot": lambda _, budget: DepthPrune(budget, search="one_shot"),
    "even split by remove=": even_split,
    "split of BoundaryDPT": boundary_split,
    "whole blocks": lambda _, budget: DepthPrune(budget, kinds="block"),
}
BY_COUNT = ("even split by remove=", "split of BoundaryDPT")
NOT_FOR = {"resnet56": BY_COUNT}  # it has no attention


class Watch(pl.Callback):
    """Counts passes through blocks while others plan, and keeps the network as the surgery leaves it.

    Two of these stand around the callback that prunes: the one before starts, the one behind ends.

    Args:
        subject: What is pruned.
        before: The one that stands before; None: this is it.
    """

    def __init__(self, subject: Subject, before: Watch | None = None) -> None:
        self.subject, self.before = subject, before
        self.seen, self._own = 0, subject.block.forward
        self.network: nn.Module | None = None

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start counting, or end it."""
        if self.before is not None:
            self.subject.block.forward = self.before._own  # type: ignore[method-assign]
            self.network = Ledger.of(pl_module).plain_copy(pl_module, self.subject.target)
            return
        watch, own = self, self._own

        def forward(block: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Any:
            watch.seen += len(x)
            return own(block, x, *args, **kwargs)

        self.subject.block.forward = forward  # type: ignore[method-assign]


def main() -> None:
    """Make the rows that are missing."""
    command_line = parser(__doc__)
    command_line.add_argument("--subject", nargs="*", default=list(SUBJECTS), choices=list(SUBJECTS))
    command_line.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    command_line.add_argument("--budgets", nargs="*", type=float, default=BUDGETS)
    command_line.add_argument("--costs", nargs="*", default=COSTS, choices=COSTS)
    command_line.add_argument("--seed", type=int, default=0)
    command_line.add_argument("--retime", action="store_true", help="measure latencies of rows by MACs again, and end")
    options = command_line.parse_args()
    rows = stored(NAME)
    if options.retime:
        save(retimed(rows))
        return
    wanted = [
        (name, method, budget, cost)
        for name in options.subject
        for cost in options.costs
        for budget in options.budgets
        for method in options.methods
        if method not in NOT_FOR.get(name, ())
    ]
    for name in dict.fromkeys(name for name, *_ in wanted):
        if not done(rows, SUBJECTS[name].model, "dense", 0.0, "", 0):
            rows.append(scored(SUBJECTS[name], SUBJECTS[name].dense(), "dense", 0.0, "", "prune_only", 0))
            save(rows)
    for name, method, budget, cost in track(wanted, "pruning and recovering"):
        if not done(rows, SUBJECTS[name].model, method, budget, cost, options.seed):
            rows += known(rows, SUBJECTS[name], method, budget, cost, options.seed) or measured(
                SUBJECTS[name], method, budget, cost, options.seed
            )
            save(rows)


def retimed(rows: list[Row]) -> list[Row]:
    """Return rows, those of depth by MACs with latencies of networks without as many units, drawn at random."""
    found: dict[str, float] = {}
    subject = SUBJECTS["deit_tiny"]
    for row in track([row for row in rows if row["cost"] == "macs" and row["model"] == subject.model], "timing"):
        counts = row["removed"]
        if str(counts) not in found:
            dense = subject.dense()
            plan = plan_depth(dense, remove=counts, batches=[subject.example], importance="random", search="one_shot")
            other = subject.dense()
            apply_plan(other, plan)
            merge(other)
            found[str(counts)] = latency_share(subject, dense, other)
        row["latency_share"] = found[str(counts)]
    return rows


def done(rows: list[Row], model: str, method: str, budget: float, cost: str, seed: int) -> bool:
    """Whether there are rows of this kind."""
    asked = {"model": model, "method": method, "budget": budget, "cost": cost, "seed": seed}
    return any(all(row[key] == value for key, value in asked.items()) for row in rows)


def known(rows: list[Row], subject: Subject, method: str, budget: float, cost: str, seed: int) -> list[Row]:
    """Return the rows of a method that removes so many units of each kind, if the same fit was made for another one."""
    if method not in BY_COUNT:
        return []
    asked: dict[str, Any] = {cost: budget}
    counts = METHODS[method](subject, Budget(**asked)).budget.remove
    same = (row for row in rows if row["method"] in BY_COUNT and row["removed"] == counts)
    about = {"method": method, "budget": budget, "cost": cost}
    return [{**row, **about} for row in same if (row["model"], row["seed"]) == (subject.model, seed)][:2]


def measured(subject: Subject, method: str, budget: float, cost: str, seed: int) -> list[Row]:
    """Prune and recover in one fit, and score both."""
    pl.seed_everything(seed, verbose=False)
    asked: dict[str, Any] = {cost: budget}
    surgeon = METHODS[method](subject, Budget(**asked))
    module, loader = subject.module(subject.dense(), seed)
    before = Watch(subject)
    behind = Watch(subject, before)
    callbacks = [before, surgeon, behind, DistillRecover()]
    trainer = pl.Trainer(max_epochs=1, accelerator=DEVICE.type, callbacks=callbacks, **QUIET, **subject.precision)
    trainer.fit(module, train_dataloaders=loader)
    ledger = Ledger.of(module)
    blocks = sum(isinstance(part, subject.block) for part in subject.dense().modules())
    plan = ledger.plans[subject.target]
    what = {
        "passes": before.seen / (blocks * surgeon.calibration),
        "planning_seconds": sum(event.seconds or 0.0 for event in ledger.events),
        "removed": {kind: len(names) for kind, names in plan.removed.items()},
        "depth_share": plan.evidence.get("depth_share"),
        "splits": plan.evidence.get("splits"),
    }
    assert behind.network is not None
    stages = {"prune_only": behind.network, "recovered": ledger.plain_copy(module, subject.target)}
    return [
        {**scored(subject, network, method, budget, cost, stage, seed), **what} for stage, network in stages.items()
    ]


def scored(subject: Subject, network: nn.Module, method: str, budget: float, cost: str, stage: str, seed: int) -> Row:
    """Score a network, and measure what it costs once merged."""
    dense, merged = subject.dense(), copy.deepcopy(network).cpu().eval()
    merge(merged)
    return {
        "model": subject.model,
        "method": method,
        "budget": budget,
        "cost": cost,
        "stage": stage,
        "macs_share": count_macs(merged, subject.example) / count_macs(dense, subject.example),
        "latency_share": latency_share(subject, dense, merged) if cost == "latency" else None,
        **accuracy(subject.hits(network)),
        "seed": seed,
        "passes": 0.0,
        "device": device_name(DEVICE),
    }


def latency_share(subject: Subject, dense: nn.Module, other: nn.Module) -> float:
    """Return the share of the dense network's latency that another one has, on one thread of the processor."""
    return latency_ratio(dense, other, subject.example, pairs=PAIRS, warmup=5).ratio.value


def save(rows: list[Row]) -> None:
    """Write JSON and Markdown."""
    commands = commands_so_far(NAME)
    write(NAME, {"commands": commands, "rows": rows}, markdown(rows, commands))


if __name__ == "__main__":
    main()
