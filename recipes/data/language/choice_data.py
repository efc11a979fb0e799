"""Multiple-choice questions from the hub or local files, as a DataModule for causal language models.

Training batches hold each question with its right answer, and only the answer is scored; evaluation batches hold each
question with every answer, for accuracy by log-likelihood: see `prunerecover.language.accuracy`. A prompt is an
optional passage, "Question: ..." and "Answer:"; see `choice_columns` for the forms of columns. Does not cover examples
in the prompt or streaming: all tokens of a split are held in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from torch import Tensor
from torch.utils.data import Dataset

from prunerecover.display.spelled_out import spelled_out
from prunerecover.language.accuracy import EncodedQuestion, choice_batch, encode_question
from prunerecover.language.likelihood import Encoding, labelled, scored_behind
from prunerecover.recipes.data.language.choice_columns import ChoiceColumns, find_choice_columns
from prunerecover.recipes.data.language.language_data import LanguageArguments, LanguageData
from prunerecover.recipes.data.language.tokenizers import context_of, open_tokenizer
from prunerecover.recipes.data.table_data import TableArguments, TableData


class ChoiceQuestions(Dataset[EncodedQuestion]):
    """Questions as tokens, with a method for batches.

    Args:
        questions: Questions in order.
        tokenizer: Tokenizer with the padding of batches.
        training: Whether batches hold right answers alone.
    """

    def __init__(self, questions: Sequence[EncodedQuestion], tokenizer: Any, training: bool) -> None:
        self.questions, self.tokenizer, self.training = questions, tokenizer, training

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int) -> EncodedQuestion:
        return self.questions[index]

    def collate(self, questions: Sequence[EncodedQuestion]) -> dict[str, Tensor]:
        """Return a batch: right answers with labels in training, else the batch of `choice_batch`."""
        if self.training:
            rights = [scored_behind(*question.rows[question.answer]) for question in questions]
            return labelled(rights, self.tokenizer)
        return choice_batch(questions, self.tokenizer)


@spelled_out(LanguageArguments, TableArguments, LanguageData, TableData)
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

    def __init__(
        self,
        path: str,
        name: str | None = None,
        chat: bool = False,
        question_column: str | None = None,
        choices_column: str | None = None,
        answer_column: str | None = None,
        passage_column: str | None = None,
        batch_size: int = 8,
        **table: Unpack[LanguageArguments],
    ) -> None:
        super().__init__(path, name, batch_size, **table)
        self.chat = chat
        self.columns = (question_column, choices_column, answer_column, passage_column)

    def samples(self, rows: Any, role: str) -> ChoiceQuestions:
        """Return the questions of the rows as tokens.

        Raises:
            ValueError: If a column is missing, a row has no question or no right answer, a question is longer than the
                model's context, or `chat` is set and the tokenizer has no template.
        """
        tokenizer = open_tokenizer(self.model, self.tokenizer)
        encoding = Encoding(tokenizer, context_of(self.model, tokenizer), self.chat)
        columns = find_choice_columns(rows, *self.columns)
        questions = [self._encoded(row, number, columns, encoding, role) for number, row in enumerate(rows)]
        return ChoiceQuestions(questions, tokenizer, training=role == "train")

    def _encoded(
        self, row: dict[str, Any], number: int, columns: ChoiceColumns, encoding: Encoding, role: str
    ) -> EncodedQuestion:
        with self.naming_row(number, role):
            return encode_question(columns.read(row), encoding, number)
