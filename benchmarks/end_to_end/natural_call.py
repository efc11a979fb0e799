"""The natural call of each callback at one budget: depth, width and both, on real DeiT-Tiny and ResNet-56.

    PRUNERECOVER_DATA=... python -m benchmarks.end_to_end.natural_call
    PRUNERECOVER_DATA=... python -m benchmarks.end_to_end.natural_call --subject resnet56 --budgets 0.33 --costs macs

Every callback is given a budget and nothing else, in a fit of one short epoch with distillation: 1,000 images of
tiny_imagenet for DeiT-Tiny, 5,000 of CIFAR-10 for ResNet-56. The network is scored right after the surgery
(prune_only) and at the end (recovered), on all 5,000 and 10,000 test images. Shares of cost are shares of the
merged network; latency is the median of interleaved pairs on PyTorch's threads: with a single thread
(OMP_NUM_THREADS=1) other work on the machine does not count. A row of DeiT-Tiny takes between a quarter of an hour and
an hour on two cores, mostly for planning.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn

from benchmarks.data.real import DEVICE
from benchmarks.end_to_end.natural_call_subjects import SUBJECTS, Subject
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.fits import QUIET
from benchmarks.runner.page import Column, Table, ahead, counts, figure, text
from benchmarks.runner.rows import Figure, Results
from prunerecover import Budget, merge
from prunerecover.boundary.feasible import TYPES
from prunerecover.callbacks import DepthPrune, DistillRecover, Prune, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.cost.environment import device_name
from prunerecover.cost.latency import latency_ratio
from prunerecover.cost.macs import count_macs
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.display.progress import stage_under_way
from prunerecover.session.session import Session

NAME = "natural_call"
BUDGETS, COSTS = (0.20, 0.33, 0.50), ("macs", "latency")
BOUNDARY = "e prunerecover (default)"  # among the rows of boundary_dpt
PAIRS = 40


def even_split(subject: Subject, budget: Budget) -> DepthPrune:
    """Remove as many attentions as activations: the least number whose parts of the cost add up to the budget."""
    assert budget.share is not None
    cost, share = budget.share
    planner = DepthSearch(Session(subject.dense(), [subject.example]), TYPES)
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


class Watch(pl.Callback):
    """Counts passes through blocks by stage while others plan, and keeps the network as the surgery leaves it.

    Two watches stand around the pruning callback: the first starts the count, the second ends the count.

    Args:
        subject: Network to prune.
        before: Watch in front of the callback; None: this watch stands in front.
    """

    def __init__(self, subject: Subject, before: Watch | None = None) -> None:
        self.subject, self.before = subject, before
        self.seen, self._own = Counter[str](), subject.block.forward
        self.network: nn.Module | None = None

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start counting, or end it."""
        if self.before is not None:
            self.subject.block.forward = self.before._own  # type: ignore[method-assign]
            self.network = Ledger.of(pl_module).plain_copy(pl_module, self.subject.target)
            return
        watch, own = self, self._own

        def forward(block: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Any:
            watch.seen[stage_under_way()] += len(x)
            return own(block, x, *args, **kwargs)

        self.subject.block.forward = forward  # type: ignore[method-assign]


def known(name: str, method: str, cost: str, budget: float, seed: int) -> list[dict[str, Any]]:
    """Return the rows of a method that removes so many units of each kind, if the same fit was made for another one."""
    if method not in BY_COUNT:
        return []
    asked: dict[str, Any] = {cost: budget}
    counts = METHODS[method](SUBJECTS[name], Budget(**asked)).budget.remove
    rows = [row for row in Results.read(NAME).find(subject=name, seed=seed) if row.method in BY_COUNT]
    same = [row for row in rows if row["removed"] == counts][:2]
    return [{"stage": row["stage"], **row.figures, **row.notes} for row in same]


def measure(subject: str, cost: str, budget: float, method: str, seed: int) -> Iterator[dict[str, Any]]:
    """Prune and recover in one fit, and score both."""
    one = SUBJECTS[subject]
    if method == "dense":
        yield {"stage": "prune_only", **scored(one, one.dense(), cost)}
        pl.seed_everything(seed, verbose=False)
        module, loader = one.module(one.dense(), seed)
        trainer_of(one, [DistillRecover(teacher=one.dense())]).fit(module, train_dataloaders=loader)
        yield {"stage": "recovered", **scored(one, module.get_submodule(one.target), cost)}
        return
    if made := known(subject, method, cost, budget, seed):
        yield from made
        return
    pl.seed_everything(seed, verbose=False)
    asked: dict[str, Any] = {cost: budget}
    surgeon = METHODS[method](one, Budget(**asked))
    module, loader = one.module(one.dense(), seed)
    before = Watch(one)
    behind = Watch(one, before)
    callbacks = [before, surgeon, behind, DistillRecover()]
    trainer_of(one, callbacks).fit(module, train_dataloaders=loader)
    ledger = Ledger.of(module)
    images = surgeon.calibration * sum(isinstance(part, one.block) for part in one.dense().modules())
    plan = ledger.plans[one.target]
    notes = {
        "passes": before.seen.total() / images,
        "stages": {stage: passes for stage, seen in before.seen.most_common() if (passes := round(seen / images))},
        "planning_seconds": sum(event.seconds or 0.0 for event in ledger.events),
        "removed": {kind: len(names) for kind, names in plan.removed.items()},
        "depth_share": plan.evidence.get("depth_share"),
        "splits": plan.evidence.get("splits"),
    }
    assert behind.network is not None
    stages = {"prune_only": behind.network, "recovered": ledger.plain_copy(module, one.target)}
    for stage, network in stages.items():
        yield {"stage": stage, **scored(one, network, cost), **notes}


def trainer_of(subject: Subject, callbacks: list[pl.Callback]) -> pl.Trainer:
    """Return the Trainer of the short epoch."""
    return pl.Trainer(max_epochs=1, accelerator=DEVICE.type, callbacks=callbacks, **QUIET, **subject.precision)


def scored(subject: Subject, network: nn.Module, cost: str) -> dict[str, Any]:
    """Score a network, and measure what it costs once merged."""
    dense, merged = subject.dense(), copy.deepcopy(network).cpu().eval()
    merge(merged)
    timed = latency_ratio(dense, merged, subject.example, pairs=PAIRS, warmup=5) if cost == "latency" else None
    return {
        "top1": Figure.of(subject.hits(network)),
        "macs_share": count_macs(merged, subject.example) / count_macs(dense, subject.example),
        "latency_share": None if timed is None else timed.ratio.value,
        "device": device_name(DEVICE),
    }


OURS = {"DepthPrune": "DepthPrune default", "Prune": "Prune (joint)"}
BENCHMARK = Benchmark(
    name=NAME,
    title="One budget, one argument: depth, width and both",
    text="""Each callback with a budget and its defaults, in one short epoch with distillation, which adapts a
    dense network, too. Passes: images through all blocks while planning, timed ones included, per calibration
    image. In depth: of Prune's budget. Ahead by: top-1 points on the same images, paired, with their 95% interval.
    Splits by counts may miss the share: BoundaryDPT's at 33% were picked for the latency, and take out less of the
    MACs. Latency is processor time of one thread, of two in DeiT-Tiny's row of Prune at 33%; in rows by MACs, the
    latency of networks without as many units of each kind, drawn at random. The epoch has the same learning rate
    for all methods; [best rates](best_rates.md) has runs at the best of three for each. The row of Prune at a third of
    DeiT-Tiny's latency is of the present planner; at half of the latency, with replacements [shrunk](ridge.md) less; of
    Prune on ResNet-56, with all fits shrunk less; of Prune at 20% of the latency, and of DepthPrune on DeiT-Tiny at
    33%, likewise, tuned on 1,280 images in four epochs; of Prune at a third of the MACs, of a planner with scores
    without standard errors and fits of all images in its search. Minutes are on busy cores, but for Prune's on
    DeiT-Tiny at 33% of the latency, on idle ones. DepthPrune on ResNet-56 was made when the search scored on 64
    held-out samples alone; Prune at half of the MACs, and DepthPrune at 33% of DeiT-Tiny's MACs, before the present
    rates of tuning, too; further rows by earlier planners, tuned on the calibration images alone.""",
    measure=measure,
    axes={
        "subject": Axis(tuple(SUBJECTS), "--subject"),
        "cost": Axis(COSTS),
        "budget": Axis(BUDGETS, open=True),
        "method": Axis(tuple(METHODS)),
        "seed": Axis((0,), "--seed", open=True),
    },
    references=[{"subject": name, "cost": "", "budget": 0.0, "method": "dense", "seed": 0} for name in SUBJECTS],
    skipped=lambda subject, method, **names: subject == "resnet56" and method in BY_COUNT,
    also=("stage",),
    complete=False,
    threads=0,
    tables=(
        Table(
            [text("subject", "dense"), text("stage"), figure("top1", "top-1 (95%)", 2, 100)],
            line=("subject", "stage"),
            where=lambda row: row.method == "dense",
        ),
        Table(
            [
                text("method"),
                text("stage"),
                text("macs_share", "MACs share", "{:.3f}"),
                text("latency_share", "latency share", "{:.3f}"),
                figure("top1", "top-1 (95%)", 2, 100),
                *(
                    ahead("top1", f"{name} ahead by", 1, 100, same=("stage",), method=ours)
                    for name, ours in OURS.items()
                ),
                text("depth_share", "in depth", "{:.1%}"),
                text("passes", "", "{:.1f}"),
                Column("planning, min", lambda line: f"{line.first['planning_seconds'] / 60:.1f}"),
                text("device"),
            ],
            title="{subject}, {budget:.0%} of the {cost}",
            by=("subject", "cost", "budget"),
            line=("stage", "method"),
            where=lambda row: row.method != "dense",
        ),
        Table(
            [text("budget", "", "{:.0%}"), text("cost"), text("method"), counts("stages", "passes by stage")],
            title="Stages of {subject}",
            by=("subject",),
            line=("cost", "budget", "method"),
            where=lambda row: row.get("stages") is not None,
        ),
    ),
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
