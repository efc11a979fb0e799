"""Questions with choices for a language model, and the right answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FORMAT = "Question: {question}\nAnswer:"
WITH_PASSAGE = "{passage}\nQuestion: {question}\nAnswer:"


@dataclass(frozen=True)
class Question:
    """A question and the answers to choose from.

    Attributes:
        prompt: Text before the answer.
        choices: Answers; each follows the prompt, with a space between.
        answer: Number of the right answer.

    Raises:
        ValueError: If the prompt or a choice is empty, or there is no choice with the number of the answer.

    >>> Question("Is snow warm?", ("yes", "no"), 1).right
    'no'
    """

    prompt: str
    choices: tuple[str, ...]
    answer: int

    def __post_init__(self) -> None:
        """Check prompt, choices and answer."""
        if not self.prompt.strip():
            raise ValueError("Expected a prompt that the answers follow, but it is empty. Leave the question out.")
        if not self.choices or not all(choice.strip() for choice in self.choices):
            raise ValueError(
                f"Expected choices that are not empty, but got {list(self.choices)} for {self.prompt[:60]!r}. Leave "
                "the question out."
            )
        if not 0 <= self.answer < len(self.choices):
            raise ValueError(
                f"Expected the number of the right choice, from 0 to {len(self.choices) - 1}, but got {self.answer} "
                f"for {self.prompt[:60]!r}."
            )

    @property
    def right(self) -> str:
        """The right answer."""
        return self.choices[self.answer]


def check_questions(questions: Sequence[object]) -> None:
    """Raise ValueError without questions, and TypeError for other items."""
    if not questions:
        raise ValueError("Expected at least one question, but got none.")
    odd = next((one for one in questions if not isinstance(one, Question)), None)
    if odd is not None:
        raise TypeError(
            f"Expected questions (Question), but one is of {type(odd).__name__}. Read rows of a data set by "
            "[question_of(row) for row in rows]."
        )


def question_of(row: Mapping[str, Any]) -> Question:
    """Read a row of a data set with `question`, `choices`, `answer` and perhaps a `passage`.

    Args:
        row: Row with a list of texts as `choices` and the number or the text of the right answer as `answer`.

    Raises:
        ValueError: If a column is missing, or the question is invalid: see `Question`.

    >>> question_of({"question": "Is snow warm?", "choices": ["yes", "no"], "answer": "no"}).answer
    1
    """
    missing = [name for name in ("question", "choices", "answer") if row.get(name) is None]
    if missing:
        raise ValueError(
            f"Expected rows with question, choices and answer, but {missing[0]} is missing in one with "
            f"{', '.join(sorted(row))}. Rename the columns."
        )
    choices, answer = tuple(map(str, row["choices"])), row["answer"]
    if isinstance(answer, str) and answer not in choices:
        raise ValueError(f"Expected one of the choices {list(choices)} as the answer, but got {answer!r}.")
    number = choices.index(answer) if isinstance(answer, str) else int(answer)
    form = WITH_PASSAGE if row.get("passage") else FORMAT
    return Question(form.format(question=row["question"], passage=row.get("passage")), choices, number)
