"""DataModule over a table of text, questions or instructions: the shared part of data for language models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prunerecover.recipes.data.language.text_source import open_text
from prunerecover.recipes.data.language.tokenizers import name_of
from prunerecover.recipes.data.table_data import TableArguments, TableData


class LanguageArguments(TableArguments, total=False):
    """Types of the arguments for data of language models.

    Args:
        model: Path or hub id of the language model with the tokenizer and the context length; None: the trained model.
        tokenizer: Path or hub id of another tokenizer; None takes the model's.
    """

    model: str | None
    tokenizer: str | None


class LanguageData(TableData):
    """Train, validation and test rows of a source, for a language model.

    Args:
        path: Hub id, or local files for `open_text`.
        name: Configuration of the hub data set; in a local folder of several data sets, the name of one.
        batch_size: Samples per device.
        table: Further arguments of `TableData`.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        path: str,
        name: str | None,
        batch_size: int,
        *,
        model: str | None = None,
        tokenizer: str | None = None,
        num_workers: int = 0,
        **table: Any,
    ) -> None:
        super().__init__(path, name, batch_size, num_workers=num_workers, **table)
        self.model, self.tokenizer = model, tokenizer

    def setup(self, stage: str) -> None:
        """Open the splits for `stage`.

        Raises:
            ValueError: If a needed split, column or tokenizer does not exist.
        """
        if self.model is None and self.trainer is not None:
            self.model = name_of(self.trainer.lightning_module)
        super().setup(stage)

    def open_splits(self) -> Any:
        """Return the rows of every split."""
        return open_text(self.path, self.name)

    @contextmanager
    def naming_row(self, number: int, role: str) -> Iterator[None]:
        """Add the number of the row to an error about a row."""
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{error} This is row {number} of the {role} data in {self.path}.") from error
