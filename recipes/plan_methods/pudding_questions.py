"""Questions of `PuddingPlan` by use: for sets, for the router, for the choice of its epoch, and for the report.

Questions are told apart by their prompts, without regard to spaces and capitals, so that no prompt is in two parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from prunerecover.language.questions import Question
from prunerecover.recipes.data.language.choice_data import find_choice_columns
from prunerecover.recipes.data.language.language_data import open_text
from prunerecover.recipes.tasks.route_picker import as_written_once, held_out

APART = 0.4  # share of the router's questions held out: half to choose its epoch, half to report on


@dataclass(frozen=True)
class Asked:
    """Questions by their use.

    Attributes:
        tasks: Questions to search sets on, by task.
        router: Questions for the router.
        chosen: Mask of the router's questions that choose its epoch, boolean.
        reported: Questions to report on.
    """

    tasks: Mapping[str, list[Question]]
    router: list[Question]
    chosen: Tensor
    reported: list[Question]

    def counts(self, routed: bool) -> str:
        """Describe the number of questions per use.

        Args:
            routed: Whether there is a router.
        """
        searched = ", ".join(f"{len(found):,} questions of {name}" for name, found in self.tasks.items())
        chosen = int(self.chosen.sum())
        learnt = f"The router learns from {len(self.router) - chosen:,} others, and {chosen:,} choose its epoch. "
        return (
            f"Sets are searched on {searched}. {learnt if routed else ''}All is judged on {len(self.reported):,} more "
            "questions, whose prompts are in no other part."
        )


def ask(tasks: Mapping[str, str], names: Mapping[str, str], calibrated: int, routed: int, seed: int) -> Asked:
    """Read the training questions of tasks, in a seeded order.

    Args:
        tasks: Hub ids or local files, by the name of the task.
        names: Names of configurations on the hub, or of data sets in a local folder, by the name of the task.
        calibrated: Number of questions per task to search sets on.
        routed: Largest number of further questions per task.
        seed: Seed of the order and of the parts.

    Raises:
        ValueError: If a task cannot be read, or too few questions are left for a part.
    """
    by_task = {name: _read(path, names.get(name), calibrated + routed, seed) for name, path in tasks.items()}
    searched = {name: found[:calibrated] for name, found in by_task.items()}
    seen = {as_written_once(question.prompt) for found in searched.values() for question in found}
    rest = [q for found in by_task.values() for q in _unseen(found[calibrated:], seen)[:routed]]
    if not rest:
        raise ValueError(
            f"Expected more than {calibrated} questions per task, of which the router learns from the rest, but "
            "there are none left. Lower calibration_questions."
        )
    apart, half = held_out(rest, APART, seed), held_out(rest, 0.5, seed + 1)
    reported = apart & ~half
    parts = {"to train on": ~apart, "to choose by": apart & half, "to report on": reported}
    empty = [name for name, part in parts.items() if not part.any()]
    if empty:
        raise ValueError(
            "Expected questions to train a router on, others to choose by and others to report on, but of "
            f"{len(rest)} besides those that sets are searched on there are none {' and '.join(empty)}. Lower "
            "calibration_questions, or give more questions."
        )
    return Asked(searched, _those(rest, ~reported), apart[~reported], _those(rest, reported))


def _read(path: str, name: str | None, most: int, seed: int) -> list[Question]:
    """Return training questions of a data set, in a seeded order."""
    splits = open_text(path, name)
    rows = splits["train"] if "train" in splits else next(iter(splits.values()))
    columns = find_choice_columns(rows)
    order = np.random.default_rng(seed).permutation(len(rows))
    return [columns.read(rows[i]) for i in order[:most].tolist()]


def _those(questions: Sequence[Question], part: Tensor) -> list[Question]:
    return [question for question, inside in zip(questions, part.tolist(), strict=True) if inside]


def _unseen(questions: Sequence[Question], seen: set[str]) -> list[Question]:
    return [question for question in questions if as_written_once(question.prompt) not in seen]
