"""Report of a model before and after pruning, in a form to read back.

A report holds costs (parameters, MACs, latency as the median of interleaved pairs, memory), metrics with confidence
intervals, the removals, the cost of the search, and the machine and software of the measurement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prunerecover.display.summary import Summarised, Summary
from prunerecover.files.atomic import atomic_file, write_text
from prunerecover.files.in_short import in_short, validated
from prunerecover.former import warn_of
from prunerecover.plan.evidence import PlanningCost
from prunerecover.report import render
from prunerecover.report.data import SCHEMA, ReportData

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


class Report(Summarised, ReportData):
    """Before and after: `ReportData` with methods to show, write and read back."""

    @property
    def search(self) -> PlanningCost | None:
        """Former name of `planning_cost`."""
        warn_of("Report.search")
        return self.planning_cost

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        unsaid = {name for name in ("logged", "quality") if not getattr(self, name)}
        return self.model_dump(mode="json", by_alias=True, exclude=unsaid)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """Read a report from the values of `to_dict`.

        Raises:
            ValueError: If the data are no report, or of another schema.
        """
        found = data.get("schema")
        if found != SCHEMA:
            raise ValueError(
                f"Expected a report of schema '{SCHEMA}', but got '{in_short(found)}'. Read it with the version that "
                "wrote it."
            )
        return validated(cls, dict(data), "a complete report", "Was the file edited?")

    def to_markdown(self, figures: Iterable[str] = ()) -> str:
        """Return the report as Markdown, with links to `figures` given as file names."""
        return render.markdown(self, figures)

    def summary(self) -> Summary:
        """Return the comparison for `print` and notebooks."""
        return render.summarised(self)

    def table(self) -> Table:
        """Return the comparison as a table for the terminal."""
        return render.table(self)

    def save(self, folder: str | Path, figures: Mapping[str, Figure] | None = None) -> Path:
        """Write `report.md`, `report.json` and a PNG per figure into `folder`, and return the folder.

        Args:
            folder: Folder to write, created if missing.
            figures: Figures by name, also the file name: characters except letters, digits, dots and dashes become "_",
                and a number distinguishes equal names.
        """
        target = Path(folder)
        names = _file_names(figures or {})
        for file, figure in zip(names, (figures or {}).values(), strict=True):
            with atomic_file(target / file) as unfinished:
                figure.savefig(unfinished, dpi=200)
        write_text(target / "report.json", json.dumps(self.to_dict(), indent=2) + "\n")
        write_text(target / "report.md", self.to_markdown(names))
        return target

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Read a `report.json`, by path or from a folder.

        Raises:
            ValueError: If the file holds no report.
        """
        file = Path(path)
        file = file / "report.json" if file.is_dir() else file
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"Expected JSON in {file}, but {error}. Was the file cut off?") from error
        return cls.from_dict(data if isinstance(data, dict) else {})


def _file_names(figures: Iterable[str]) -> list[str]:
    """Return a PNG name for each figure, valid in links and all file systems; names differ in more than case."""
    taken: set[str] = set()
    names = []
    for figure in figures:
        stem = re.sub(r"[^\w.-]+", "_", figure)
        free = (f"{stem}.png" if i == 1 else f"{stem}_{i}.png" for i in count(1))
        name = next(name for name in free if name.lower() not in taken)
        taken.add(name.lower())
        names.append(name)
    return names
