"""Break plans, pruned and routed folders, checkpoints and stores in 1,000 seeded ways, and open each.

    python -m benchmarks.end_to_end.fuzz

Opened means `apply_plan(model, path)`, `load_pruned(path)` without a model, with a dense one or with the class,
`load_routed(path)`, or `plan_depth(..., store=path)`. Each has to end well: with the network of the unbroken file, with
one whose structure is that which the file's hash says, or with a ValueError, TypeError or FileNotFoundError that says
what was expected, in no more than 2,000 letters. After an error the model that was passed is as it was. Nothing is
executed, and no file is written. Bits that turn in tensors must not go unnoticed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.end_to_end import mutations
from benchmarks.end_to_end.subjects import IMAGES, Subject, make_subjects
from prunerecover.display.markdown import table
from prunerecover.model.hashing import tensors_hash

NUMBER, SECONDS = 1000, 60  # mutations; how long opening a file may take
GOOD = ("the same", "as its hash says", "a clear error")
CLEAR = ("Expected ", "Plan removes ")  # how our messages begin
LONGEST = 2000  # letters of a message


@dataclass(frozen=True)
class Outcome:
    """What became of one mutation."""

    number: int
    subject: str
    mutation: str
    outcome: str
    detail: str = ""


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    """What a network computes in single precision: its weights have the dtypes of the file, one by one."""
    return model.eval().float()(IMAGES)


def state(model: nn.Module | None) -> tuple[str, dict[str, Tensor]]:
    """What must be as it was."""
    held = {} if model is None else {name: value.clone() for name, value in model.state_dict().items()}
    return repr(model), held


def same_state(left: tuple[str, dict[str, Tensor]], right: tuple[str, dict[str, Tensor]]) -> bool:
    """Whether nothing has changed."""
    (text, a), (other, b) = left, right
    return text == other and a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def listing(folder: Path) -> list[str]:
    """All files, by name and size."""
    return sorted(f"{path.relative_to(folder)} {path.stat().st_size}" for path in folder.rglob("*"))


class TooSlow(BaseException):
    """Opening takes too long; no clause for exceptions catches it."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `TooSlow` in a block that takes longer."""

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
    """Open broken files, and say how it went."""
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
    """Whether bits turned in a file that holds tensors: nobody wrote other ones there."""
    return said.startswith(("flip", "zeros")) and not said.endswith(".json")


def run(numbers: Iterable[int], seed: int = 0, watch: Callable[[Outcome], None] = lambda _: None) -> list[Outcome]:
    """Break and open files.

    Args:
        numbers: Of mutations; each draws from a generator of its own.
        seed: Of all of them.
        watch: Sees every outcome.
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
            watch(found[-1])
            shutil.rmtree(place)
            shutil.rmtree(folder / mutations.PAYLOAD, ignore_errors=True)
    return found


def markdown(found: list[Outcome], seed: int, versions: dict[str, str]) -> str:
    """Render the result."""
    bad = [each for each in found if each.outcome not in GOOD]
    columns = sorted({each.outcome for each in found}, key=lambda name: (name not in GOOD, name))
    counts = Counter((each.subject, each.outcome) for each in found)
    rows = [(name, *(counts[name, column] for column in columns)) for name in sorted({each.subject for each in found})]
    shown = [(each.number, each.subject, each.mutation, each.outcome, each.detail) for each in bad]
    lines = [
        f"# {len(found)} broken files",
        "",
        f"`python -m benchmarks.end_to_end.fuzz`, seed {seed}. "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
        + ".",
        "",
        f"{len(found) - len(bad)} of {len(found)} end well: with the same network, with one of the structure that the "
        "file's hash says, or with an error that says what was expected; the model that was passed is untouched, "
        "nothing is executed and no file is written.",
        "",
        table(("files", *columns), rows),
        *(["", table(("number", "files", "mutation", "outcome", "what"), shown)] if bad else []),
    ]
    return "\n".join(lines)


def main() -> None:
    """Break the files, and write the page."""
    from benchmarks.data.real import parser, write
    from prunerecover.cost.environment import versions

    options = parser(__doc__)
    options.add_argument("--n", type=int, default=NUMBER, help="how many mutations")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--dry", action="store_true", help="print what goes wrong, and write no page")
    given = options.parse_args()
    started = time.perf_counter()
    found = run(range(given.n), given.seed)
    bad = [asdict(each) for each in found if each.outcome not in GOOD]
    print(json.dumps(bad, indent=1), f"{len(bad)} of {len(found)} in {time.perf_counter() - started:.0f} s", sep="\n")
    if not given.dry:
        by_outcome = Counter(each.outcome for each in found)
        result = {"seed": given.seed, "n": given.n, "outcomes": dict(by_outcome), "failed": bad}
        write("fuzz", result, markdown(found, given.seed, versions()))


if __name__ == "__main__":
    main()
