"""What a search has found so far, in a folder: one that is interrupted goes on behind its last result.

A search is a chain of results, of which each follows from the network, the samples, the arguments and all results
before. So the name of a result's file is a hash of these: the same search, begun again, finds its results in the order
in which it asks for them, and another one finds none of them. Fitted tensors are among the results: of a large model
the folder takes as much room as the linear maps of all its blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from prunerecover.calibration.candidates import Candidate, Choice
from prunerecover.files.atomic import atomic_file
from prunerecover.model.batches import as_inputs
from prunerecover.model.hashing import stored_parts, weights_hash
from prunerecover.plan.edits import Fold, Remove, Replace
from prunerecover.plan.units import Unit
from prunerecover.version import __version__

T = TypeVar("T")
ENDING = ".pt"
CLASSES = [Candidate, Choice, Fold, Remove, Replace, Unit]  # of what results are made, besides primitives and tensors


class SearchStore:
    """Keeps the results of one search.

    Args:
        folder: Where; made when the first result comes, and may hold other searches. None: nothing is kept.
        device: On which results are needed; None: on that where they were found.
    """

    def __init__(self, folder: str | Path | None = None, device: torch.device | None = None) -> None:
        self.folder, self._device = None if folder is None else Path(folder), device
        self._before, self._computing = __version__, False

    def starts_from(self, network: nn.Module, batches: Sequence[Any], *arguments: object) -> None:
        """Tell the search from others.

        Args:
            network: That is searched; unwrapped.
            batches: In any form that planning takes.
            arguments: Of the search, as they are written. Functions count by their names.
        """
        if self.folder is None:
            return
        digest = hashlib.sha256(f"{weights_hash(network)}".encode())
        buffers = [value for name, value in sorted(network.named_buffers())]
        for tensor in (*buffers, *(leaf for batch in batches for leaf in _leaves(batch))):
            for part in stored_parts(tensor.detach()):
                digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
                digest.update(part.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        self._follow(digest.hexdigest(), *map(_written, arguments))

    def goes_on_with(self, *arguments: object) -> None:
        """Tell what is searched for next from what else might be."""
        self._follow(*map(_written, arguments))

    def result(self, what: str, names: Iterable[str], compute: Callable[[], T]) -> T:
        """Return what an earlier run found at this point of the search, or find it now, and keep it.

        Args:
            what: Is asked.
            names: What it is asked about.
            compute: Finds it; results inside belong to it.

        Raises:
            ValueError: If a file of the folder cannot be read.
        """
        if self.folder is None or self._computing:
            return compute()
        self._follow(what, *names)
        path = self.folder / f"{self._before}{ENDING}"
        if path.is_file():
            return self._read(path)  # type: ignore[no-any-return]
        self._computing = True
        try:
            found = compute()
        finally:
            self._computing = False
        with atomic_file(path) as unfinished:
            torch.save(found, unfinished)
        return found

    def _follow(self, *parts: str) -> None:
        self._before = hashlib.sha256("\n".join((self._before, *parts)).encode()).hexdigest()

    def _read(self, path: Path) -> Any:
        try:
            with torch.serialization.safe_globals(list(CLASSES)):
                return torch.load(path, map_location=self._device, weights_only=True)
        except Exception as error:  # whatever a damaged archive makes of itself
            raise ValueError(
                f"Expected a result of a search at {path}, but it cannot be read: {error}. Move the file away; the "
                "search goes on from there."
            ) from error


def results_in(folder: Path) -> int:
    """Return how many results a folder holds."""
    return len(list(folder.glob(f"*{ENDING}")))


def _leaves(batch: Any) -> list[Tensor]:
    """Return the tensors of a batch: what the network is given, and what a loss may read besides."""
    inputs = as_inputs(batch)
    parts = (inputs.args, inputs.kwargs, None if batch is inputs else batch, getattr(batch, "batch", None))
    return [leaf for leaf in tree_leaves(parts) if isinstance(leaf, Tensor)]


def _written(argument: object) -> str:
    """Write an argument so that it reads the same in another process."""
    return f"{argument.__module__}.{argument.__qualname__}" if callable(argument) else repr(argument)  # type: ignore[attr-defined]
