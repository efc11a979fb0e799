"""Omission sets: the least needed blocks of a language model, for each task and each objective.

PuDDing (Wee et al., arXiv 2502.04348, section 4.1) removes blocks greedily, a set per task and objective, by the
negative likelihood of right answers, and by its contrastive form. Here a search gives every depth (`Plan.first`), and
the static set is made on the questions of all tasks together. A router has to beat the best single set for all prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.display.progress import progress
from prunerecover.families.describe import describe_blocks
from prunerecover.former import renamed
from prunerecover.language.likelihood import AnswerBatch, Encoding, answer_batches, answer_loss
from prunerecover.language.questions import Question, check_questions
from prunerecover.model.paths import unwrap
from prunerecover.plan.plan import Plan
from prunerecover.planning.plan_depth import plan_depth
from prunerecover.routing.plan_set import PlanSet, check_routable
from prunerecover.session.session import Session

STATIC = "static"
OBJECTIVES = {"likelihood": False, "contrastive": True}


def plan_omission_sets(
    model: nn.Module,
    tasks: Mapping[str, Sequence[Question]],
    encoding: Encoding,
    blocks: int,
    *,
    objectives: Sequence[str] = tuple(OBJECTIVES),
    shared_prefix: int = 2,
    search: str = "greedy",
    batch_size: int = 16,
    seed: int = 0,
    store: str | Path | None = None,
    losses: Sequence[str] | None = None,
) -> PlanSet:
    """Plan a set of blocks per task and objective, and a static set for all tasks; the model is not changed.

    Args:
        model: Causal language model of a supported family.
        tasks: Questions by the name of the task, from training splits without reported questions.
        encoding: Encoding of texts as tokens.
        blocks: Number of blocks to remove in each set.
        objectives: Objectives: "likelihood" of right answers, "contrastive" against wrong answers, or both.
        shared_prefix: Number of first blocks to keep in every set: a router may read the prompt from their output.
        search: Search, "greedy" or "exact"; see `plan_depth`.
        batch_size: Answers per batch.
        seed: Seed of the planning.
        store: Folder for intermediate results, see `plan_depth`, to resume an interrupted search; None: no folder.
        losses: Former name of `objectives`.

    Returns:
        Sets named `task/loss` behind "static" (all questions, the first objective); duplicates are dropped.

    Raises:
        TypeError: If the items of a task are no questions, for example rows of a data set.
        ValueError: If there is no task or question, an objective is unknown, too many blocks are to be removed, or
            blocks cannot leave this model.
    """
    objectives = renamed("plan_omission_sets(losses=)", losses, objectives)
    if not objectives or any(objective not in OBJECTIVES for objective in objectives):
        raise ValueError(f"Expected objectives among {', '.join(OBJECTIVES)}, but got {list(objectives)}.")
    empty = [name for name, questions in tasks.items() if not questions]
    if empty or not tasks:
        raise ValueError(f"Expected questions for every task, but {empty[0] if empty else 'no task'} has none.")
    layout = describe_blocks(unwrap(model))
    if not 0 <= shared_prefix < len(layout.blocks):
        raise ValueError(
            f"Expected 0 to {len(layout.blocks) - 1} blocks that stay for the router, but got {shared_prefix}."
        )
    most = len(layout.blocks) - max(shared_prefix, 1)
    if not 1 <= blocks <= most:
        raise ValueError(
            f"Expected 1 to {most} blocks to remove of the {len(layout.blocks)}, of which {shared_prefix} stay for the "
            f"router, but got {blocks}."
        )
    for questions in tasks.values():
        check_questions(questions)
    kept = [block.path for block in layout.blocks[:shared_prefix]]
    wanted = {STATIC: ([q for questions in tasks.values() for q in questions], objectives[0])}
    wanted |= {f"{task}/{objective}": (list(tasks[task]), objective) for task in tasks for objective in objectives}
    how: dict[str, Any] = {"importance": "cross_entropy", "loss": answer_loss, "search": search, "ignore": kept}
    found: dict[str, Plan] = {}
    with progress("searching for omission sets", len(wanted)) as advance:
        for name, (questions, objective) in wanted.items():
            batches = answer_batches(questions, encoding, contrastive=OBJECTIVES[objective], batch_size=batch_size)
            if not found:
                _check_taken_out(unwrap(model), batches[:1], DepthConfig(**how, seed=seed))
            plan = plan_depth(model, remove={"block": blocks}, batches=batches, **how, seed=seed, store=store)
            check_routable(name, plan)
            if not any(plan.removed == other.removed for other in found.values()):
                found[name] = plan
            advance()
    return PlanSet(names=tuple(found), plans=tuple(found.values()))


def _check_taken_out(model: nn.Module, batches: Sequence[AnswerBatch], config: DepthConfig) -> None:
    """Raise ValueError if a removed block would leave an identity in the model."""
    left = DepthSearch(Session(model, batches), ("block",), config).blocks_left_as_identity()
    if left:
        raise ValueError(
            f"Expected a model with removable blocks, but without {left[0]} the rest of this "
            f"{type(model).__name__} is no model of its config: layers differ, or compute with their number. Take a "
            "model of a supported family, or prune it by a single set: plan_depth."
        )
