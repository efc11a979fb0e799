"""Break plans, pruned and routed folders, checkpoints and stores in 1,000 seeded ways, and open each.

    python -m benchmarks.end_to_end.fuzz

Files are opened by `apply_plan(model, path)`, by `load_pruned(path)` without a model, with a dense one or with the
class, by `load_routed(path)`, or by `plan_depth(..., store=path)`. Each call has to end well: with the network of the
intact file, with a network whose structure matches the file's hash, or with a ValueError, TypeError or
FileNotFoundError that names the expected content in at most 2,000 letters. After an error, the given model is
unchanged. Nothing is executed, and no file is written. Flipped bits in tensors must not go unnoticed.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.end_to_end import mutations
from benchmarks.end_to_end.subjects import IMAGES, Subject, make_subjects
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table
from benchmarks.runner.rows import Row
from prunerecover.display.markdown import table
from prunerecover.model.hashing import tensors_hash

NUMBER, SECONDS = 1000, 60  # mutations; how long opening a file may take
GOOD = ("the same", "as its hash says", "a clear error")
CLEAR = ("Expected ", "Plan removes ")  # beginnings of our messages
LONGEST = 2000  # letters of a message


@dataclass(frozen=True)
class Outcome:
    """Outcome of a mutation."""

    number: int
    subject: str
    mutation: str
    outcome: str
    detail: str = ""


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    """Return a network's logits in single precision; the weights have the dtypes of the file."""
    return model.eval().float()(IMAGES)


def state(model: nn.Module | None) -> tuple[str, dict[str, Tensor]]:
    """Return the structure and the tensors of a model, for comparison."""
    held = {} if model is None else {name: value.clone() for name, value in model.state_dict().items()}
    return repr(model), held


def same_state(left: tuple[str, dict[str, Tensor]], right: tuple[str, dict[str, Tensor]]) -> bool:
    """Whether two states are equal."""
    (text, a), (other, b) = left, right
    return text == other and a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def listing(folder: Path) -> list[str]:
    """All files, by name and size."""
    return sorted(f"{path.relative_to(folder)} {path.stat().st_size}" for path in folder.rglob("*"))


class TooSlow(BaseException):
    """Signal of a slow opening; no clause for exceptions catches it."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `TooSlow` in a `with` block over the limit."""

    def stop(*args: Any) -> None:
        raise TooSlow

    former = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


def judge(subject: Subject, place: Path, said: str, wanted: Tensor, structures: set[str]) -> tuple[str, str]:
    """Open broken files, and return the outcome."""
    model = None if subject.dense is None else subject.dense()
    before, files = state(model), listing(place.parent)
    try:
        with time_limit(SECONDS):
            found = subject.opened(place, model)
            out = logits(found)
    except (ValueError, TypeError, FileNotFoundError) as error:
        clear = str(error).startswith(CLEAR) and len(str(error)) <= LONGEST
        outcome = "a clear error" if clear else "an unclear error"
        detail = f"{type(error).__name__}: {str(error)[:300]}"
        if not same_state(before, state(model)):
            outcome = "an error, and a changed model"
    except TooSlow:
        outcome, detail = "no end", ""
    except Exception as error:
        outcome, detail = "another error", f"{type(error).__name__}: {str(error)[:300]}"
    else:
        outcome, detail = "another network", ""
        if out.shape == wanted.shape and torch.allclose(out.float(), wanted, rtol=1e-3, atol=1e-3):
            outcome = "the same"
        elif tensors_hash(found) in structures and not _is_silent(said):
            outcome = "as its hash says"
    return (outcome, detail) if listing(place.parent) == files else ("files written", detail)


def _is_silent(said: str) -> bool:
    """Whether bits changed in a file of tensors: an error to detect, unlike a consistent file of new values."""
    return said.startswith(("flip", "zeros")) and not said.endswith(".json")


def run(numbers: Iterable[int], seed: int = 0) -> list[Outcome]:
    """Break and open files.

    Args:
        numbers: Numbers of mutations, each with a generator of its own.
        seed: Common seed of the mutations.
    """
    found = []
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        subjects = make_subjects(folder / "whole")
        networks = [s.opened(s.files, None if s.dense is None else s.dense()) for s in subjects]
        wanted = [logits(network) for network in networks]
        structures = {tensors_hash(network) for network in networks}
        for number in numbers:
            draw = Random(f"{seed}.{number}")
            index = draw.randrange(len(subjects))
            subject, place = subjects[index], folder / "broken"
            shutil.copytree(subject.files, place)
            said = draw.choice(subject.mutations)(place, draw)
            outcome, detail = judge(subject, place, said, wanted[index], structures)
            found.append(Outcome(number, subject.name, said, outcome, detail))
            shutil.rmtree(place)
            shutil.rmtree(folder / mutations.PAYLOAD, ignore_errors=True)
    return found


def measure(n: int, seed: int) -> Iterator[dict[str, Any]]:
    """Break and open files, and yield a row for each kind."""
    yield from rows_of(run(range(n), seed))


def rows_of(found: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    """Yield the number of outcomes by kind of file, and the failures."""
    for subject in sorted({each.subject for each in found}):
        own = [each for each in found if each.subject == subject]
        bad = [asdict(each) for each in own if each.outcome not in GOOD]
        yield {"method": subject, "outcomes": dict(Counter(each.outcome for each in own)), "failed": bad}


def outcomes(rows: Sequence[Row]) -> str:
    """Render the numbers of outcomes, and the failures."""
    bad = [tuple(each.values()) for row in rows for each in row["failed"]]
    total = sum(sum(row["outcomes"].values()) for row in rows)
    ways = sorted({way for row in rows for way in row["outcomes"]}, key=lambda way: (way not in GOOD, way))
    lines = [(row.method, *(row["outcomes"].get(way, 0) for way in ways)) for row in rows]
    parts = [f"{total - len(bad)} of {total} end well.", table(("files", *ways), lines)]
    return "\n\n".join(parts + ([table(("number", "files", "mutation", "outcome", "what"), bad)] if bad else []))


BENCHMARK = Benchmark(
    title="Broken files",
    text="""Files end well with the same network, with one of the structure that the file's hash says, or with an error
    that says what was expected; the model that was passed is untouched, nothing is executed and no file is written.""",
    measure=measure,
    axes={"n": Axis((NUMBER,), "--n", open=True), "seed": Axis((0,), "--seed", open=True)},
    also=("method",),
    complete=False,
    threads=0,
    tables=(Table((), "{n} broken files, seed {seed}", by=("n", "seed"), text=outcomes),),
)

if __name__ == "__main__":
    BENCHMARK.main()
