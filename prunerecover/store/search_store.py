"""Results of a search in a folder: an interrupted search continues behind its last result.

A search is a chain of results, each decided by the network, the samples, the arguments and all results before. So the
name of a result's file is a hash of all four: the same search, begun again, finds its results in the order of its
requests, and any different search finds no result. Independent alternatives are requested together, and the ranks of
torch.distributed share the work. State that shows in no weight, sample or argument, for example a hook or the code of a
loss, must be unchanged: outputs and losses of the dense network are kept, too, and compared.
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

from prunerecover.files.atomic import atomic_file
from prunerecover.files.checksums import check_sums
from prunerecover.files.in_short import in_short
from prunerecover.files.refused_writes import naming_the_folder
from prunerecover.store.ranks import Ranks, by_itself, rank_and_world, sharing
from prunerecover.store.written import written
from prunerecover.version import __version__

T = TypeVar("T")
ENDING = ".pt"
RESULT = re.compile(rf"[0-9a-f]{{64}}{re.escape(ENDING)}")
ALIKE = 0.01  # tolerance between machines, relative to the norm of an output
SEEN = 4096  # compared numbers of an output


class SearchStore:
    """Store of the results of one search.

    Args:
        folder: Folder of the results, also of several searches. None: no results are kept.
        device: Device for loaded results; None: the device of the computation.
    """

    def __init__(self, folder: str | Path | None = None, device: torch.device | None = None) -> None:
        self.folder, self._device = None if folder is None else Path(folder), device
        self._key, self._computing, self._apart, self._ranks = "", False, False, Ranks()
        self._begun: Callable[[], str] = str  # the slow key of a search without a folder

    def begin(self, network: nn.Module, *parts: object, seen: Mapping[str, Callable[[], Tensor]]) -> None:
        """Identify the search.

        Args:
            network: Network, unwrapped.
            parts: Further values that decide the search: batches, arguments. Functions count by name.
            seen: Functions of outputs of the dense network, by name; a continued search must give the same outputs.

        Raises:
            ValueError: If the folder holds foreign files, or an output differs from the beginning of the search.
            OSError: If the folder is not writable.
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
                    f"Expected the {name} of the dense network to be the same as when the search in {self.folder} "
                    "began, but it differs: the code or the data have changed without a trace in weights or arguments. "
                    "Take another folder."
                )

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Share results among the ranks of torch.distributed inside a `with` block, entered by all ranks.

        Ranks share no search begun differently on different ranks, for example with samples of their own.
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
        """Make the next results depend on further values."""
        if self._key:
            self._key = self._after(*parts)

    def result(self, what: str, names: Iterable[str], compute: Callable[[], T]) -> T:
        """Return the result of an earlier run at this point of the search, or compute and keep the result.

        Args:
            what: Name of the question.
            names: Names of the subjects of the question. All else is decided by the results before.
            compute: Function that computes the result; results requested inside are part of the result.

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
        asked: Sequence[Sequence[object]],
        compute: Callable[[int], T],
        advance: Callable[[], None] = lambda: None,
        *,
        everywhere: bool = False,
    ) -> list[T]:
        """Return the results of alternatives from earlier runs; compute and keep missing results, each rank a share.

        Args:
            what: Name of the question.
            asked: Names of the subjects of each alternative, or values as in `begin`. Alternatives depend on the
                results before, not on each other.
            compute: Function from the number of an alternative to the result; results requested inside are part of the
                result.
            advance: Function called once for each alternative.
            everywhere: Whether every rank computes all missing results, for side effects; the first rank's results
                count.

        Raises:
            OSError: If the folder is full or read-only.
        """
        if self._computing or (self.folder is None and self._ranks.alone):
            return [self._moved(advance, partial(compute, number)) for number in range(len(asked))]
        assert self._key, "a search begins before it has results"
        keys = [self._after(what, *names) for names in asked]
        found = self._ranks.united(self._after(what, keys), self._known(keys))
        missing = [number for number in range(len(asked)) if number not in found]

        def find(number: int) -> T:
            return self._moved(advance, partial(self._found, keys[number], partial(compute, number), everywhere))

        own, error = self._of_share(missing if everywhere else self._ranks.share(missing), find)
        for _ in range(len(asked) - len(own)):
            advance()
        if missing:
            found |= self._ranks.united(self._after(what, keys, "found"), own, error)
        return self._here([found[number] for number in range(len(asked))])

    def spread(self, what: str, parts: int, compute: Callable[[int], T], /) -> list[T]:
        """Return the parts of a sum, of which each rank computes a share, see `Spread`; nothing is kept.

        Every rank has to ask, outside of results or inside of results computed by every rank. In other results, a
        rank computes all parts by itself.
        """
        if self._ranks.alone or self._apart:
            return by_itself(what, parts, compute)
        rank, world = rank_and_world()
        own, error = self._of_share(range(rank, parts, world), compute)
        found = self._ranks.united(self._after(what, str(parts)), own, error)
        return self._here([found[number] for number in range(parts)])

    def _of_share(self, share: Sequence[int], compute: Callable[[int], T]) -> tuple[dict[int, T], Exception | None]:
        """Return the values of this rank's share by number, and the error of the rank, to be told to all ranks."""
        own = dict[int, T]()
        try:
            for number in share:
                own[number] = compute(number)
        except Exception as raised:
            if self._ranks.over:  # the error is of an exchange, and no further one follows
                raise
            return own, raised
        return own, None

    def _here(self, values: list[T]) -> list[T]:
        """Return values, of other ranks perhaps, on the device."""
        return values if self._ranks.alone else tree_map_only(Tensor, lambda value: value.to(self._device), values)

    def _after(self, *parts: object) -> str:
        """Return the key after further values."""
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
        """Return the kept results of some keys; warn about a damaged file."""
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

    def _found(self, key: str, compute: Callable[[], T], everywhere: bool) -> T:
        """Compute a result, on every rank or apart from the others, and keep the result."""
        self._computing, self._apart = True, not everywhere
        try:
            found = compute()
        finally:
            self._computing, self._apart = False, False
        if self.folder is not None:
            with atomic_file(self._path(key)) as unfinished, unfinished.open("wb") as stream:
                torch.save(found, stream)
        return found

    def _path(self, key: str) -> Path:
        assert self.folder is not None, "nothing is kept without one"
        return self.folder / f"{key}{ENDING}"

    def _read(self, path: Path) -> Any:
        check_sums(path)
        return torch.load(path, map_location=self._device, weights_only=True)


def store_folder(store: object) -> Path | None:
    """Return the folder of a store from the argument `store`; None without a store.

    Args:
        store: Argument.

    Raises:
        TypeError: If the argument is no path.
        ValueError: If a file has the name.
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
    """Make the folder of a store; refuse a folder with foreign files and without results."""
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
    """Return evenly spaced numbers of an output."""
    flat = output.detach().flatten()
    return flat[:: -(-flat.numel() // SEEN) or 1].float()


def results_in(folder: Path) -> int:
    """Return the number of results in a folder."""
    return sum(RESULT.fullmatch(file.name) is not None for file in folder.glob(f"*{ENDING}"))


def delete_results(folder: Path) -> None:
    """Delete the results in a folder, and the folder if empty afterwards."""
    if not folder.is_dir():
        return
    for file in folder.glob(f"*{ENDING}"):
        if RESULT.fullmatch(file.name) or file.name.startswith("."):  # files left unfinished by a kill, too
            file.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()
