"""Text from the hub or local files, packed into sequences of tokens, as a DataModule for causal language models.

Documents are tokenized with the tokenizer's special tokens, joined by its end-of-text token, and cut into sequences of
equal length (as in the training of GPT-3, arXiv 2005.14165, section 2.3); the tokens after the last whole sequence are
left out. Attention does not stop at the end of a document. The `datasets` library opens all data: the same recipe runs
on local files and on the hub. Does not cover streaming, chats or padded batches: all tokens of a split are held in
memory, four bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunerecover.display.spelled_out import spelled_out
from prunerecover.recipes.data.image_source import find_column, type_of
from prunerecover.recipes.data.language.language_data import LanguageData
from prunerecover.recipes.data.language.tokenizers import check_length, open_tokenizer
from prunerecover.recipes.data.table_data import Samples

TEXT_COLUMNS = ("text", "content", "document")
DOCUMENTS = 1000  # tokenized at a time
JOINED_ROWS = 10_000  # tokenized as one string; the WikiText-2 test split has 4,358


def as_sequence(tokens: Tensor, number: int) -> dict[str, Tensor]:
    """Return tokens as inputs and as labels: a causal language model shifts the labels."""
    return {"input_ids": tokens.long(), "labels": tokens.long()}


@spelled_out(LanguageData)
@dataclass(eq=False, kw_only=True)
class TextData(LanguageData):
    r"""Train, validation and test sequences.

    Args:
        path: Hub id, or local file or folder: parquet, jsonl or json (a document per row), txt (a document per file).
        name: Configuration of the hub data set; in a local folder of several data sets, the name of one.
        length: Tokens per sequence.
        separator: Text between rows as pieces of a single text, such as "\n\n" for WikiText, the usual way to report
            its perplexity; None: rows are documents, joined by the end-of-text token.
        text_column: Name of the column with the text; None guesses.
        batch_size: Sequences per device.

    Raises:
        ValueError: If an argument is out of range.
    """

    length: int = 512
    separator: str | None = None
    text_column: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 2:
            raise ValueError(f"Expected a length of 2 or more tokens, to predict the next one, but got {self.length}.")

    def samples(self, rows: Any, role: str) -> Samples:
        """Return the sequences of the rows, packed in order.

        Raises:
            ValueError: If there is no column of text, the text makes less than one sequence, the tokenizer has no
                end-of-text token to join documents by, or the model's context is shorter than a sequence.
        """
        column = find_column(rows, self.text_column, TEXT_COLUMNS, "text")
        dtype = type_of(rows, column)
        if dtype not in ("string", "large_string"):
            raise ValueError(f"Expected text in column {column!r}, but got {dtype[:80]}. Set text_column.")
        tokenizer = open_tokenizer(self.model, self.tokenizer)
        check_length(self.length, self.model, tokenizer)
        join = self.separator
        pieces = _documents(rows, column, tokenizer) if join is None else _joined(rows, column, tokenizer, join)
        tokens = torch.from_numpy(np.concatenate([np.empty(0, np.int32), *pieces]))
        whole = len(tokens) // self.length
        if not whole:
            raise ValueError(
                f"Expected {role} text of at least one sequence of {self.length} tokens in {self.path}, but got "
                f"{len(tokens)} tokens in {len(rows)} rows. Set a smaller length, or give more text."
            )
        return Samples(tokens[: whole * self.length].view(-1, self.length), as_sequence)


def _documents(rows: Any, column: str, tokenizer: Any) -> Iterator[np.ndarray]:
    """Yield the tokens of each non-blank document, followed by the end-of-text token."""
    end = tokenizer.eos_token_id
    if end is None:
        raise ValueError(
            f"Expected a tokenizer with an end-of-text token, to join documents by, but {tokenizer.name_or_path} has "
            "no eos_token. Set it in its tokenizer_config.json, or join rows by separator='\\n\\n'."
        )
    for batch in rows.iter(DOCUMENTS):
        texts = [text for text in batch[column] if text and not text.isspace()]
        for ids in tokenizer(texts, verbose=False)["input_ids"] if texts else ():
            yield np.asarray(ids if ids[-1:] == [end] else [*ids, end], np.int32)


def _joined(rows: Any, column: str, tokenizer: Any, separator: str) -> Iterator[np.ndarray]:
    """Yield the tokens of many rows at a time, read as a single text."""
    for number, batch in enumerate(rows.iter(JOINED_ROWS)):
        text = separator.join(text or "" for text in batch[column])
        ids = tokenizer(separator + text if number else text, add_special_tokens=not number, verbose=False)
        yield np.asarray(ids["input_ids"], np.int32)
