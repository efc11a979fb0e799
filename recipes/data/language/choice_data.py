"""Multiple-choice questions from the hub or local files, as a DataModule for causal language models.

Training batches hold each question with its right answer, and only the answer is scored; evaluation batches hold each
question with every answer, for accuracy by log-likelihood: see `prunerecover.language.accuracy`. A prompt is an
optional passage, "Question: ..." and "Answer:"; see `choice_columns` for the forms of columns. Does not cover examples
in the prompt or streaming: all tokens of a split are held in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from prunerecover.display.spelled_out import spelled_out
from prunerecover.language.accuracy import EncodedQuestion, choice_batch, encode_question
from prunerecover.language.likelihood import Encoding, labelled, scored_behind
from prunerecover.recipes.data.language.choice_columns import find_choice_columns
from prunerecover.recipes.data.language.language_data import LanguageData
from prunerecover.recipes.data.language.tokenizers import context_of, open_tokenizer
from prunerecover.recipes.data.table_data import Samples


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
