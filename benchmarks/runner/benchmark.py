"""Runner of benchmarks: names of the rows, options of the command line, missing rows, and the page.

A benchmark defines its rows (a value of each axis, in order), the measurement of a row, and the columns of its page.
Every axis is an option of the command line. Rows are saved at once, and finished ones are not measured again.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure as Picture
from rich.console import Console
from rich.progress import track

from benchmarks.runner.page import Table, folded
from benchmarks.runner.rows import Results, Row
from prunerecover.files.atomic import write_text

Names = dict[str, Any]
Found = Mapping[str, Any]
NAMED = 12  # most missing rows named on a page


@dataclass(frozen=True)
class Axis:
    """Values of a row's name, and the option for a choice among them.

    Attributes:
        values: Values, in the order of measurement and display.
        option: Option; empty: the name and an s.
        default: Default choice of values; None: all.
        open: Whether further values are allowed.
    """

    values: Sequence[Any]
    option: str = ""
    default: Sequence[Any] | None = None
    open: bool = False

    def add_to(self, parser: argparse.ArgumentParser, name: str) -> None:
        """Add the option to a command line."""
        kind = type(self.values[0])
        default = list(self.values if self.default is None else self.default)
        choices = None if self.open else self.values
        option = self.option or f"--{name.replace('_', '-')}s"
        parser.add_argument(option, dest=name, nargs="*", type=kind, default=default, choices=choices)


@dataclass
class Benchmark:
    """A benchmark.

    Attributes:
        title: Title of the page.
        text: Description of the measurement, above the tables.
        measure: Function from the names of a row to its figures and notes, or to several rows in turn. The docstring of
            its module is the help of the command.
        name: Name of the files in docs/results; empty: that of the module.
        axes: Values by name; a row is a value of each, the last name changing first.
        references: Names of further rows, such as the dense network's.
        skipped: Whether names are of no row.
        also: Entries of measurements that become names of rows.
        tables: Tables of the page.
        closing: Lines of the page behind the tables.
        pictures: Functions that draw pictures from the rows, by the ends of their file names.
        complete: Whether the page lists missing rows.
        threads: Number of PyTorch's threads; 0: PyTorch's default.
    """

    title: str
    text: str
    measure: Callable[..., Found | Iterable[Found]]
    name: str = ""
    axes: Mapping[str, Axis] = field(default_factory=dict)
    references: Sequence[Names] = ()
    skipped: Callable[..., bool] = lambda **names: False
    also: tuple[str, ...] = ()
    tables: Sequence[Table] = ()
    closing: Callable[[Sequence[Row]], Sequence[str]] = lambda rows: ()
    pictures: Mapping[str, Callable[[Sequence[Row]], Picture]] = field(default_factory=dict)
    complete: bool = True
    threads: int = 1

    def __post_init__(self) -> None:
        self.name = self.name or Path(inspect.getfile(self.measure)).stem

    def main(self) -> None:
        """Measure the missing rows that the command line asks for, and write the page."""
        given = self.command_line().parse_args()
        if self.threads:
            torch.set_num_threads(self.threads)
        if not given.page:
            self.run(given)
        self.write(self.results(given))

    def command_line(self) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = command_line(sys.modules[self.measure.__module__].__doc__)
        for name, axis in self.axes.items():
            axis.add_to(parser, name)
        parser.add_argument("--out", type=Path, help="folder of the rows and the page (default: docs/results)")
        parser.add_argument("--again", action="store_true", help="measure rows that are there, too")
        parser.add_argument("--page", action="store_true", help="write the page anew, and measure nothing")
        return parser

    def wanted(self, chosen: Mapping[str, Sequence[Any]] | None = None) -> list[Names]:
        """Return the names of all rows, or of those with chosen values."""
        values = {name: (chosen or {}).get(name, axis.values) for name, axis in self.axes.items()}
        every = [dict(zip(values, each, strict=True)) for each in product(*values.values()) if values]
        first = [names for names in self.references if all(map(partial(_is_chosen, self.axes, values), names.items()))]
        return [*first, *(names for names in every if not self.skipped(**names))]

    def results(self, given: argparse.Namespace) -> Results:
        """Return the existing rows, with those of docs/results if the output is elsewhere."""
        own = Results.read(self.name, given.out)
        if given.out:
            own.rows = [row for row in Results.read(self.name).rows if not own.find(**row.names)] + own.rows
        return own

    def run(self, given: argparse.Namespace) -> None:
        """Measure the missing rows, and save each at once."""
        there = self.results(given)
        wanted = self.wanted({name: getattr(given, name) for name in self.axes})
        missing = [names for names in wanted if given.again or not there.find(**names)]
        gc.freeze()  # timings collect garbage first, and need not look through all that is imported
        for names in track(missing, self.name, console=Console(stderr=True)):
            found = self.measure(**names)
            for one in [found] if isinstance(found, Mapping) else found:
                self.keep(names, one, given)

    def keep(self, names: Names, found: Found, given: argparse.Namespace) -> None:
        """Add a row to the file, and print it."""
        more = {name: found[name] for name in self.also if name in found}
        row = Row.of({**names, **more}, {name: value for name, value in found.items() if name not in more})
        Results.read(self.name, given.out).add([row])
        print(f"{told(row.names)}: {', '.join(f'{k} {v.value:.4g}' for k, v in row.figures.items())}", flush=True)

    def write(self, results: Results) -> None:
        """Write the page, and the pictures."""
        write_text(results.path.with_suffix(".md"), self.markdown(results.rows, results.runs))
        for end, draw in self.pictures.items() if results.rows else ():
            place = results.path.with_name(f"{self.name}{end}.png")
            draw(results.rows).savefig(place, dpi=130, bbox_inches="tight")

    def markdown(self, rows: Sequence[Row], runs: Sequence[Mapping[str, Any]]) -> str:
        """Render the page."""
        order = {name: axis.values for name, axis in self.axes.items()}
        lines = [f"# {self.title}", "", inspect.cleandoc(self.text), ""]
        for end in self.pictures:
            lines += [f"![{self.title}{end.replace('_', ', ')}]({self.name}{end}.png)", ""]
        for table in self.tables:
            lines += table.markdown(rows, order)
        for part in (*self.closing(rows), *self.not_measured(rows)):
            lines += [part, ""]
        return "\n".join([*lines, *folded(runs)]) + "\n"

    def not_measured(self, rows: Sequence[Row]) -> list[str]:
        """Return a line on the missing rows."""
        wanted = self.wanted() if self.complete else []
        left = [names for names in wanted if not any(row.is_of(**names) for row in rows)]
        if not left:
            return []
        more = f"; and {len(left) - NAMED} more" if len(left) > NAMED else ""
        return [f"Not measured, {len(left)} of {len(wanted)}: {'; '.join(map(told, left[:NAMED]))}{more}."]


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """Return a command line with a module's docstring as help."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def told(names: Mapping[str, Any]) -> str:
    """Return names in words.

    >>> told({"method": "joint", "budget": None, "seed": 0})
    'joint, 0'
    """
    return ", ".join(str(value) for value in names.values() if value not in (None, ""))


def _is_chosen(axes: Mapping[str, Axis], chosen: Mapping[str, Sequence[Any]], entry: tuple[str, Any]) -> bool:
    name, value = entry
    return name not in axes or value not in axes[name].values or value in chosen[name]
