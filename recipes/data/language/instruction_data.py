"""Instructions and chats from the hub or local files, as a DataModule for causal language models.

Only the responses are scored: see `prunerecover.language.responses`. Samples are padded to the longest of the batch.
Longer samples are cut at the end, and left out if the whole response is cut away; a warning counts both. Does not cover
packing or streaming: all tokens of a split are held in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from prunerecover.display.spelled_out import spelled_out
from prunerecover.importance.measuring.losses import IGNORED
from prunerecover.language.likelihood import TokenRow, labelled
from prunerecover.language.responses import chat_row, instruction_messages, instruction_row
from prunerecover.recipes.data.image_source import find_column
from prunerecover.recipes.data.language.language_data import LanguageData
from prunerecover.recipes.data.language.tokenizers import check_length, open_tokenizer
from prunerecover.recipes.data.table_data import Samples

MESSAGES = ("messages", "conversations", "conversation")
INSTRUCTIONS = ("instruction", "prompt", "question")
INPUTS = ("input", "context")
OUTPUTS = ("output", "response", "completion", "answer")


@spelled_out(LanguageData)
@dataclass(eq=False, kw_only=True)
class InstructionData(LanguageData):
    """Train, validation and test instructions, or chats.

    Args:
        path: Hub id, or local file or folder: parquet, jsonl or json, a sample per row.
        name: Configuration of the hub data set; in a local folder of several data sets, the name of one.
        length: Most tokens of a sample.
        chat: Whether instructions are messages in the tokenizer's chat template, as chats always are, or under headings
            as in Alpaca; None: True for a tokenizer with a template.
        messages_column: Name of the column of chats; None guesses.
        instruction_column: Name of the column of instructions, for data without chats; None guesses.
        input_column: Name of the column of inputs to the instructions; None guesses.
        output_column: Name of the column of responses; None guesses.
        batch_size: Samples per device.

    Raises:
        ValueError: If an argument is out of range.
    """

    length: int = 512
    chat: bool | None = None
    messages_column: str | None = None
    instruction_column: str | None = None
    input_column: str | None = None
    output_column: str | None = None

    def samples(self, rows: Any, role: str) -> Samples:
        """Return the tokens and labels of the rows.

        Raises:
            ValueError: If a column is missing, a row has no instruction or response, the tokenizer lacks a needed chat
                template or end-of-text token, `length` is beyond the model's context, or cuts all responses away.
        """
        tokenizer = open_tokenizer(self.model, self.tokenizer)
        check_length(self.length, self.model, tokenizer)
        columns = self._columns(rows)
        encoded = self.read(rows, role, lambda row, _: self._encoded(row, columns, tokenizer))
        return Samples(self._cut(encoded, role), collate=partial(labelled, tokenizer=tokenizer))

    def _columns(self, rows: Any) -> tuple[str, ...]:
        """Return the column of chats, or the columns of instructions, outputs and, if present, inputs."""
        names = set(rows.column_names)
        by_name = self.instruction_column or self.output_column
        if self.messages_column or (not by_name and names & set(MESSAGES)):
            return (find_column(rows, self.messages_column, MESSAGES, "messages"),)
        instruction = find_column(rows, self.instruction_column, INSTRUCTIONS, "instruction")
        output = find_column(rows, self.output_column, OUTPUTS, "output")
        given = self.input_column or names & set(INPUTS)
        return (instruction, output, *([find_column(rows, self.input_column, INPUTS, "input")] if given else []))

    def _encoded(self, row: dict[str, Any], columns: tuple[str, ...], tokenizer: Any) -> TokenRow:
        if len(columns) == 1:
            return chat_row(row[columns[0]], tokenizer)
        instruction, output, *inputs = (row[name] for name in columns)
        given = inputs[0] if inputs else ""
        if bool(tokenizer.chat_template) if self.chat is None else self.chat:
            return chat_row(instruction_messages(instruction, given, output), tokenizer)
        return instruction_row(instruction, given, output, tokenizer)

    def _cut(self, rows: Sequence[TokenRow], role: str) -> list[TokenRow]:
        """Return the rows cut to `length` tokens, without rows that have no scored token left."""
        short = [(ids[: self.length], labels[: self.length]) for ids, labels in rows]
        kept = [row for row in short if any(label != IGNORED for label in row[1][1:])]
        longer, out = sum(len(ids) > self.length for ids, _ in rows), len(rows) - len(kept)
        if not kept:
            raise ValueError(
                f"Expected {role} samples of which a response is left within {self.length} tokens in {self.path}, but "
                f"got none of {len(rows)}. Set a larger length."
            )
        if longer:
            rank_zero_warn(
                f"{longer} of {len(rows)} {role} samples in {self.path} are longer than {self.length} tokens: "
                f"{longer - out} are cut, and {out} left out, whose response is cut away. Set a larger length."
            )
        return kept
