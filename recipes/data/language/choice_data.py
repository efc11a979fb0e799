"""Multiple-choice questions from the hub or local files, as a DataModule for causal language models.

Training batches hold each question with its right answer, and only the answer is scored; evaluation batches hold each
question with every answer, for accuracy by log-likelihood: see `prunerecover.language.accuracy`. A prompt is an
optional passage, "Question: ..." and "Answer:". Does not cover examples in the prompt or streaming: all tokens of a
split are held in memory.

Columns are read in the hub's various forms. Choices are a list of texts, texts with labels (ARC, OpenBookQA,
CommonsenseQA: `{"text": [...], "label": [...]}`), a column each (PIQA's sol1 and sol2, WinoGrande's option1 and
option2, Social IQa's answerA to answerC), or no and yes for yes-or-no answers (BoolQ). The answer is a number counted
from 0, the label of a choice, its letter, or its text; the suffix of a column counts as its label: WinoGrande's "1" is
option1. Does not cover free answers, several right answers, or choices in the middle of a sentence.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from string import ascii_uppercase
from typing import Any

from torch import Tensor

from prunerecover.display.spelled_out import spelled_out
from prunerecover.language.accuracy import EncodedQuestion, choice_batch, encode_question
from prunerecover.language.likelihood import Encoding, labelled, scored_behind
from prunerecover.language.questions import Question, question_of
from prunerecover.recipes.data.image_source import find_column
from prunerecover.recipes.data.language.language_data import LanguageData
from prunerecover.recipes.data.language.tokenizers import context_of, open_tokenizer
from prunerecover.recipes.data.table_data import Samples

QUESTIONS = ("question", "question_stem", "goal", "ctx", "sentence", "query", "startphrase")
CHOICES = ("choices", "options", "endings")
ANSWERS = ("answer", "answerKey", "answer_key", "label", "gold")
PASSAGES = ("passage", "context", "article", "support")
TOPIC = "activity_label"  # prefix of HellaSwag's contexts
NUMBERED = re.compile(r"(option|sol|answer|choice|ending)_?([0-9]|[A-Z])")
NO_YES = ("no", "yes")

Labelled = tuple[Sequence[str], Sequence[Sequence[str]]]


def right_answers(questions: Sequence[EncodedQuestion], tokenizer: Any) -> dict[str, Tensor]:
    """Return the questions' right answers as a batch with labels."""
    return labelled([scored_behind(*question.rows[question.answer]) for question in questions], tokenizer)


@spelled_out(LanguageData)
@dataclass(eq=False, kw_only=True)
class ChoiceData(LanguageData):
    """Train, validation and test questions.

    Args:
        path: Hub id, or local file or folder: parquet, jsonl or json, a question per row.
        name: Configuration of the hub data set; in a local folder of several data sets, the name of one.
        chat: Whether the prompt is the message of a user, in the tokenizer's chat template.
        question_column: Name of the column of questions; None guesses.
        choices_column: Name of the column of choices; None guesses, also a column per choice.
        answer_column: Name of the column of right answers; None guesses.
        passage_column: Name of the column of texts before the question; None guesses.
        test_split: Name of the test split; None guesses, and falls back to the validation split. Where the hub hides
            the answers of the test split (HellaSwag, PIQA, WinoGrande), "validation".
        batch_size: Questions per device; an evaluation batch has a row per answer of each question.

    Raises:
        ValueError: If an argument is out of range.
    """

    chat: bool = False
    question_column: str | None = None
    choices_column: str | None = None
    answer_column: str | None = None
    passage_column: str | None = None

    def samples(self, rows: Any, role: str) -> Samples:
        """Return the questions of the rows as tokens.

        Raises:
            ValueError: If a column is missing, a row has no question or no right answer, a question is longer than the
                model's context, or `chat` is set and the tokenizer has no template.
        """
        tokenizer = open_tokenizer(self.model, self.tokenizer)
        encoding = Encoding(tokenizer, context_of(self.model, tokenizer), self.chat)
        named = (self.question_column, self.choices_column, self.answer_column, self.passage_column)
        columns = find_choice_columns(rows, *named)
        questions = self.read(rows, role, lambda row, number: encode_question(columns.read(row), encoding, number))
        collate = right_answers if role == "train" else choice_batch
        return Samples(questions, collate=partial(collate, tokenizer=tokenizer))


@dataclass(frozen=True)
class ChoiceColumns:
    """Columns of a table of questions.

    Attributes:
        question: Column of the question.
        choices: Columns of the choices: one column of lists, a column per choice, or none for yes-or-no answers.
        answer: Column of the right answer.
        passage: Column of the text before the question, or None.
        topic: Column of the prefix of the question, followed by a colon, or None.
    """

    question: str
    choices: tuple[str, ...]
    answer: str
    passage: str | None = None
    topic: str | None = None

    def read(self, row: Mapping[str, Any]) -> Question:
        """Return the question of a row.

        Raises:
            ValueError: If the row has no valid question: see `question_of`.
        """
        question, answer = row[self.question], row[self.answer]
        if not self.choices and not isinstance(answer, bool | int):
            raise ValueError(
                f"Expected a column of choices ({', '.join(CHOICES)}, or one per choice), or answers of yes or no, but "
                f"got {answer!r} in column {self.answer!r}. Set choices_column."
            )
        texts, labels = self._choices(row)
        canonical = {
            "question": f"{row[self.topic]}: {question}" if self.topic else question,
            "choices": texts,
            "answer": _number(answer, texts, labels),
            "passage": row[self.passage] if self.passage else None,
        }
        return question_of(canonical)

    def _choices(self, row: Mapping[str, Any]) -> Labelled:
        """Return the texts of the choices, and further names for the answer, the likelier names first."""
        if not self.choices:
            return NO_YES, [("false", "true")]
        if len(self.choices) > 1:
            suffixes = [name[-1] for name in self.choices]
            return [row[name] for name in self.choices], [suffixes, _counted(suffixes)]
        stored = row[self.choices[0]] or ()
        if isinstance(stored, Mapping):
            return stored["text"], [list(map(str, stored["label"]))]
        if all(isinstance(choice, Mapping) for choice in stored):
            return [choice["text"] for choice in stored], [[str(choice["label"]) for choice in stored]]
        texts = list(map(str, stored))
        return texts, [texts, list(ascii_uppercase[: len(texts)]), [str(number) for number in range(len(texts))]]


def find_choice_columns(
    rows: Any,
    question: str | None = None,
    choices: str | None = None,
    answer: str | None = None,
    passage: str | None = None,
) -> ChoiceColumns:
    """Return the columns of a table by the given or the usual names.

    Args:
        rows: Table, a `datasets.Dataset`.
        question: Name of the column of questions; None guesses, as for all columns.
        choices: Name of the column of lists of choices.
        answer: Name of the column of right answers.
        passage: Name of the column of texts before the question.

    Raises:
        ValueError: If a column is missing; the message lists the columns.
    """
    names = rows.column_names
    found = find_column(rows, question, QUESTIONS, "question")
    several = _one_per_choice(names)
    if choices is None and several and not set(CHOICES) & set(names):
        columns = several
    elif choices is None and not set(CHOICES) & set(names):
        columns = ()
    else:
        columns = (find_column(rows, choices, CHOICES, "choices"),)
    read = find_column(rows, passage, PASSAGES, "passage") if passage or set(PASSAGES) & set(names) else None
    topic = TOPIC if found == "ctx" and TOPIC in names else None
    return ChoiceColumns(found, columns, find_column(rows, answer, ANSWERS, "answer"), read, topic)


def _one_per_choice(names: Sequence[str]) -> tuple[str, ...]:
    """Return the first two or more columns with equal names but for a number or letter, sorted by name."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        match = NUMBERED.fullmatch(name)
        if match:
            alike[match[1]].append(name)
    return next((tuple(sorted(found)) for found in alike.values() if len(found) > 1), ())


def _counted(suffixes: Sequence[str]) -> list[str]:
    """Return the numbers from 1 for columns with letters, as in Social IQa's answers."""
    return [str(1 + number) for number in range(len(suffixes))] if suffixes[0].isalpha() else []


def _number(answer: Any, texts: Sequence[str], labels: Sequence[Sequence[str]]) -> Any:
    """Return the number of the right choice; an unknown name is returned unchanged."""
    if not isinstance(answer, str):
        return answer
    for names in (*labels, texts):
        if answer.strip() in names:
            return list(names).index(answer.strip())
    return answer
