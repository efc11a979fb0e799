"""Results of a search in a folder: an interrupted search goes on behind its last result.

A search is a chain of results, of which each follows from the network, the samples, the arguments and all results
before. So the name of a result's file is a hash of these: the same search, begun again, finds its results in the order
in which it asks for them, and another one finds none of them. Alternatives, none of which follows from another, are
asked for at once, and the ranks of torch.distributed share them. What no weight, sample or argument shows, such as a
hook or what a loss computes, must be as it was: outputs and losses of the network as it is are kept, too, and compared.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from prunerecover.calibration.candidates import Candidate, Choice
from prunerecover.files.atomic import atomic_file
from prunerecover.files.checksums import check_sums
from prunerecover.files.in_short import in_short
from prunerecover.files.refused_writes import naming_the_folder
from prunerecover.plan.edits import Fold, Remove, Replace
from prunerecover.plan.units import Unit
from prunerecover.store.ranks import Ranks, sharing
from prunerecover.store.written import written
from prunerecover.version import __version__

T = TypeVar("T")
ENDING = ".pt"
RESULT = re.compile(rf"[0-9a-f]{{64}}{re.escape(ENDING)}")
ALIKE = 0.01  # of the norm of an output, by which another machine may compute it otherwise
SEEN = 4096  # numbers of an output that are compared

# Of what results are made besides tensors and primitives, with all edits that a stand-in is made of: others than these
# could be written, and not read.
CLASSES = (Candidate, Choice, Fold, Remove, Replace, Unit)


class SearchStore:
    """Keeps the results of one search.

    Args:
        folder: Where; it may hold other searches. None: nothing is kept.
        device: On which results are needed; None: on that where they were found.
    """

    def __init__(self, folder: str | Path | None = None, device: torch.device | None = None) -> None:
        self.folder, self._device = None if folder is None else Path(folder), device
        self._key, self._computing, self._ranks = "", False, Ranks()
        self._begun: Callable[[], str] = str  # of a search that nothing is kept of: its key, which takes a while

    def begin(self, network: nn.Module, *parts: object, seen: Mapping[str, Callable[[], Tensor]]) -> None:
        """Tell the search from others.

        Args:
            network: That is searched; unwrapped.
            parts: What else the search follows from: batches, arguments. Functions count by their names.
            seen: By name, what the network gives as it is, and has to give again when the search goes on.

        Raises:
            ValueError: If the folder is somebody else's, or the network gave something else when the search began.
            OSError: If nothing can be written in the folder.
        """
        tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        about = __version__, repr(network), repr(getattr(network, "config", None)), tensors, *parts
        if self.folder is None:
            self._begun = partial(self._after, *about)
            return
        _prepare(self.folder)
        self._key = self._after(*about)
        for name, compute in seen.items():
            now = _some(compute())
            before = self.result(name, (), lambda now=now: now)  # type: ignore[misc]
            if now.shape != before.shape or (now - before).norm() > ALIKE * before.norm():
                raise ValueError(
                    f"Expected the {name} of the dense network to be what it was when the search in {self.folder} "
                    "began, but it is another: something has changed that neither weights nor arguments show. Take "
                    "another folder."
                )

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Share results among the ranks of torch.distributed inside a `with` block, which all of them enter.

        Ranks alone share no search that began otherwise on another one, such as with samples of their own.
        """
        with sharing(self._begin_shared) as self._ranks:
            try:
                yield
            finally:
                self._ranks = Ranks()

    def _begin_shared(self) -> str:
        self._key = self._key or self._begun()
        return self._key

    def extend(self, *parts: object) -> None:
        """Tell what is searched for next from what else might be."""
        if self._key:
            self._key = self._after(*parts)

    def result(self, what: str, names: Iterable[str], compute: Callable[[], T]) -> T:
        """Return what an earlier run found at this point of the search, or find it now, and keep it.

        Args:
            what: Is asked.
            names: What it is asked about. All else follows from the results before.
            compute: Finds it; results inside belong to it.

        Raises:
            OSError: If the folder is full or read-only.
        """
        names = tuple(names)
        (found,) = self.results(what, [names], lambda _: compute())
        if not self._computing:
            self.extend(what, *names)
        return found

    def results(
        self,
        what: str,
        asked: Sequence[Sequence[str]],
        compute: Callable[[int], T],
        advance: Callable[[], None] = lambda: None,
        *,
        everywhere: bool = False,
    ) -> list[T]:
        """Return what earlier runs found of alternatives; find the others now, each rank its share, and keep them.

        Args:
            what: Is asked.
            asked: What it is asked about, of each. They follow from the results before, and no result from them.
            compute: Finds that of a number; results inside belong to it.
            advance: Called once for each.
            everywhere: Whether every rank computes all that is missing, for what else comes of it; the first one's
                results count.

        Raises:
            OSError: If the folder is full or read-only.
        """
        if self._computing or (self.folder is None and self._ranks.alone):
            return [self._moved(advance, partial(compute, number)) for number in range(len(asked))]
        assert self._key, "a search begins before it has results"
        keys = [self._after(what, *names) for names in asked]
        found = self._ranks.united(self._after(what, keys), self._known(keys))
        missing = [number for number in range(len(asked)) if number not in found]
        own, error = dict[int, T](), None
        try:
            for number in missing if everywhere else self._ranks.share(missing):
                own[number] = self._moved(advance, lambda n=number: self._found(keys[n], partial(compute, n)))  # type: ignore[misc]
        except Exception as raised:
            error = raised
        for _ in range(len(asked) - len(own)):
            advance()
        if missing:
            found |= self._ranks.united(self._after(what, keys, "found"), own, error)
        values = [found[number] for number in range(len(asked))]
        return values if self._ranks.alone else tree_map_only(Tensor, lambda value: value.to(self._device), values)

    def _after(self, *parts: object) -> str:
        """Return the key of what follows from parts, too."""
        digest = hashlib.sha256(self._key.encode())
        for piece in written(parts):
            digest.update(piece)
        return digest.hexdigest()

    @staticmethod
    def _moved(advance: Callable[[], None], compute: Callable[[], T]) -> T:
        found = compute()
        advance()
        return found

    def _known(self, keys: Sequence[str]) -> dict[int, Any]:
        """Return what is kept of the results of some keys; a damaged file is warned of."""
        found = {}
        for number, key in enumerate(keys if self.folder is not None else ()):
            path = self._path(key)
            if not path.is_file():
                continue
            try:
                found[number] = self._read(path)
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:  # whatever a damaged archive makes of itself
                warnings.warn(
                    f"{path} is damaged ({in_short(error, 90) or type(error).__name__}). Its result is found anew and "
                    "takes its place; if other files of the folder were damaged, too, look after the disk.",
                    stacklevel=2,
                )
        return found

    def _found(self, key: str, compute: Callable[[], T]) -> T:
        """Return what is found now, and keep it."""
        self._computing = True
        try:
            found = compute()
        finally:
            self._computing = False
        if self.folder is not None:
            with atomic_file(self._path(key)) as unfinished, unfinished.open("wb") as stream:
                torch.save(found, stream)
        return found

    def _path(self, key: str) -> Path:
        assert self.folder is not None, "nothing is kept without one"
        return self.folder / f"{key}{ENDING}"

    def _read(self, path: Path) -> Any:
        check_sums(path)
        with torch.serialization.safe_globals(list(CLASSES)):
            return torch.load(path, map_location=self._device, weights_only=True)


def store_folder(store: object) -> Path | None:
    """Return the folder of a store, given the argument of that name; None where nothing is to be kept.

    Args:
        store: Argument.

    Raises:
        TypeError: If it is no path.
        ValueError: If a file has this name.
    """
    if store is None:
        return None
    if not isinstance(store, str | Path) or not str(store):
        raise TypeError(f"Expected argument store to be the path of a folder, but got {store!r}.")
    folder = Path(store).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"Expected argument store to be a folder (it is made if missing), but {folder} is a file. Take another "
            "name."
        )
    return folder


def _prepare(folder: Path) -> None:
    """Make the folder of a store; refuse one that holds other things, and no result yet."""
    with naming_the_folder(folder / f"results{ENDING}"):
        folder.mkdir(parents=True, exist_ok=True)
        held = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
    if held and not any(map(RESULT.fullmatch, held)):
        raise ValueError(
            f"Expected argument store to be a folder for results of searches alone, but {folder} holds "
            f"{', '.join(held[:3])}{f' and {len(held) - 3} more' if len(held) > 3 else ''}. Take a folder of its own, "
            f"such as {folder / 'search'}."
        )


def _some(output: Tensor) -> Tensor:
    """Return numbers of an output that are evenly spaced."""
    flat = output.detach().flatten()
    return flat[:: -(-flat.numel() // SEEN) or 1].float()


def results_in(folder: Path) -> int:
    """Return how many results a folder holds."""
    return sum(RESULT.fullmatch(file.name) is not None for file in folder.glob(f"*{ENDING}"))


def delete_results(folder: Path) -> None:
    """Delete the results in a folder, and the folder if it holds nothing else."""
    if not folder.is_dir():
        return
    for file in folder.glob(f"*{ENDING}"):
        if RESULT.fullmatch(file.name) or file.name.startswith("."):  # those that a kill has left unfinished, too
            file.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()
