"""DataModule over a table of text, questions or instructions: the shared part of data for language models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prunerecover.display.spelled_out import spelled_out
from prunerecover.recipes.data.language.text_source import open_text
from prunerecover.recipes.data.language.tokenizers import name_of
from prunerecover.recipes.data.table_data import Samples, TableData


@spelled_out(TableData)
@dataclass(eq=False, kw_only=True)
class LanguageData(TableData):
    """Train, validation and test rows of a source, for a language model.

    Args:
        path: Hub id, or local files for `open_text`.
        name: Configuration of the hub data set; in a local folder of several data sets, the name of one.
        model: Path or hub id of the language model with the tokenizer and the context length; None: the trained model.
        tokenizer: Path or hub id of another tokenizer; None takes the model's.

    Raises:
        ValueError: If an argument is out of range.
    """

    model: str | None = None
    tokenizer: str | None = None
    num_workers: int = 0

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

    def read(self, rows: Any, role: str, read: Callable[[Any, int], Any]) -> list[Any]:
        """Return what a reader makes of each row, in memory."""
        samples = Samples(rows, read, source=self.source(role))
        return [samples[number] for number in range(len(samples))]
