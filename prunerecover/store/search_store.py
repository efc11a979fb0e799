"""Results of a search in a folder: an interrupted search goes on behind its last result.

A search is a chain of results, of which each follows from the network, the samples, the arguments and all results
before. So the name of a result's file is a hash of these: the same search, begun again, finds its results in the order
in which it asks for them, and another one finds none of them. What no weight, sample or argument shows, such as a hook
or what a loss computes, must be as it was: outputs and losses of the network as it is are kept, too, and compared.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from prunerecover.calibration.candidates import Candidate, Choice
from prunerecover.files.atomic import atomic_file
from prunerecover.files.checksums import check_sums
from prunerecover.files.in_short import in_short
from prunerecover.files.refused_writes import naming_the_folder
from prunerecover.plan.edits import Fold, Remove, Replace
from prunerecover.plan.units import Unit
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
        self._key, self._computing = "", False

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
        if self.folder is None:
            return
        _prepare(self.folder)
        tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        self.extend(__version__, repr(network), repr(getattr(network, "config", None)), tensors, *parts)
        for name, compute in seen.items():
            now = _some(compute())
            before = self.result(name, (), lambda now=now: now)  # type: ignore[misc]
            if now.shape != before.shape or (now - before).norm() > ALIKE * before.norm():
                raise ValueError(
                    f"Expected the {name} of the dense network to be what it was when the search in {self.folder} "
                    "began, but it is another: something has changed that neither weights nor arguments show. Take "
                    "another folder."
                )

    def extend(self, *parts: object) -> None:
        """Tell what is searched for next from what else might be."""
        if self.folder is None:
            return
        digest = hashlib.sha256(self._key.encode())
        for piece in written(parts):
            digest.update(piece)
        self._key = digest.hexdigest()

    def result(self, what: str, names: Iterable[str], compute: Callable[[], T]) -> T:
        """Return what an earlier run found at this point of the search, or find it now, and keep it.

        A damaged file is warned of, and its result found anew.

        Args:
            what: Is asked.
            names: What it is asked about. All else follows from the results before.
            compute: Finds it; results inside belong to it.

        Raises:
            OSError: If the folder is full or read-only.
        """
        if self.folder is None or self._computing:
            return compute()
        assert self._key, "a search begins before it has results"
        self.extend(what, *names)
        path = self.folder / f"{self._key}{ENDING}"
        if path.is_file():
            try:
                return self._read(path)  # type: ignore[no-any-return]
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:  # whatever a damaged archive makes of itself
                warnings.warn(
                    f"{path} is damaged ({in_short(error, 90) or type(error).__name__}). Its result is found anew and "
                    "takes its place; if other files of the folder were damaged, too, look after the disk.",
                    stacklevel=2,
                )
        self._computing = True
        try:
            found = compute()
        finally:
            self._computing = False
        with atomic_file(path) as unfinished, unfinished.open("wb") as stream:
            torch.save(found, stream)
        return found

    def _read(self, path: Path) -> Any:
        check_sums(path)
        with torch.serialization.safe_globals(list(CLASSES)):
            return torch.load(path, map_location=self._device, weights_only=True)


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
