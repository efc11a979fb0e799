"""Scores of variants: the objective of the network with a choice, run from the first changed layer on.

A search among hundreds of variants fits the samples of its scores: the divergence falls on these samples, and rises on
others. Choices are therefore judged on further samples, too, where there are some, and each round of refinement scores
on another part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prunerecover.calibration.samples import CalibrationSet
from prunerecover.depth.layers.prefix import PrefixRunner
from prunerecover.depth.search.objectives import Objective, OutputDivergence
from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.library.edits import Chosen, EditMaker
from prunerecover.model.batches import ModelInputs
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import unless_failing
from prunerecover.model.paths import is_within, parent_path
from prunerecover.plan.edits import Refit
from prunerecover.recovery.batchnorm import normalisation
from prunerecover.surgery.apply_edits import Applied, edited
from prunerecover.surgery.narrowing import Cuts

Signature = dict[str, Any]
Found = TypeVar("Found")
PARTS = 4  # of held-out samples: the session's own, and of as many further samples each


class Scorer:
    """Scorer of choices of variants in a network.

    Args:
        model: Dense network, in evaluation mode.
        graph: Computation graph of the model.
        maker: Makes edits of variants.
        objective: Measure of networks; "divergence" below is its value, also of a loss.
    """

    def __init__(self, model: nn.Module, graph: ComputationGraph, maker: EditMaker, objective: Objective) -> None:
        self.maker, self.objective, self._model, self._graph = maker, objective, model, graph
        self._runner = PrefixRunner(graph, len(objective.all), objective.run)
        self._first: dict[str, int] = {}
        for node in reversed(graph.nodes):
            self._first |= dict.fromkeys((node.module, *(w.rpartition(".")[0] for w in node.weights)), node.index)
        self._twin = share_copy(model).eval()
        self._dense = {id(tensor) for tensor in (*self._twin.parameters(), *self._twin.buffers())}
        self._base: Signature = {}
        objective.start(model, ())

    def begin(self) -> Scorer:
        """Make the dense network the base, whose unchanged prefix choices share; return the scorer."""
        self.objective.start(self._model, self._runner.keep(self._twin))
        self._base = self._signature(Applied())
        return self

    def divergence(self, chosen: Chosen) -> float:
        """Return the divergence of a choice; infinite where the network fails, or gives another shape."""
        found = unless_failing(lambda: self.measured(chosen, self.objective.all))
        return found if found is not None and math.isfinite(found) else math.inf

    def with_groups(self, chosen: Chosen) -> tuple[float, NDArray[np.float64]]:
        """Return the divergence of a choice, and those of groups of the samples; infinite where the network fails."""
        assert isinstance(self.objective, OutputDivergence), "losses have no groups"
        judge = self.objective.with_groups
        found = unless_failing(lambda: self._judged(chosen, self.objective.all, judge))
        return (math.inf, np.empty(0)) if found is None else found

    def measured(self, chosen: Chosen, numbers: Sequence[int]) -> float:
        """Return the divergence of a choice on some batches.

        Args:
            chosen: Variants with their fits, by site.
            numbers: Numbers of the batches.

        Raises:
            NotRemovable: If the units of the choice cannot go together.
        """
        return self._judged(chosen, numbers, self.objective.judge)

    def _judged(
        self, chosen: Chosen, numbers: Sequence[int], judge: Callable[[Sequence[int], Iterable[Any]], Found]
    ) -> Found:
        with self._pruned(chosen) as signature:
            return judge(numbers, self._runner.run(self._twin, self._first_change(signature), numbers))

    def rebase(self, chosen: Chosen) -> float:
        """Make a choice the base, whose unchanged prefix later choices share; return the divergence of the base."""
        with self._pruned(chosen) as signature:
            outputs = self._runner.keep(self._twin, self._first_change(signature))
            found = self.objective.judge(self.objective.all, outputs)
        self._base = signature
        return found

    def forget(self) -> None:
        """Give up the base: choices are run as a whole."""
        self._runner.forget()
        self._base = {}

    @contextmanager
    def _pruned(self, chosen: Chosen) -> Iterator[Signature]:
        """Apply a choice to the twin inside a `with` block; yields the signature of the twin."""
        edits, tensors = self.maker.edits(chosen)
        refitted = {edit.unit for edit in edits if isinstance(edit, Refit)}
        with torch.no_grad(), edited(self._twin, edits, tensors, to_read=True) as applied:
            yield self._signature(applied, refitted)

    def _first_change(self, signature: Signature) -> int:
        """Return the index of the first node that is not computed as in the base."""
        old = self._base
        changed = [path for path in old.keys() | signature.keys() if old.get(path) != signature.get(path)]
        return min(map(self._first_in, changed), default=len(self._graph.nodes))

    def _first_in(self, path: str) -> int:
        """Return the first node inside a module; for a module without a call, inside the module around."""
        while path:
            inside = [index for module, index in self._first.items() if is_within(module, path)]
            if inside:
                return min(inside)
            path = parent_path(path)
        return 0

    def _signature(self, applied: Applied, refitted: Collection[str] = ()) -> Signature:
        """Return the class of each module of the twin by path, with its tensors and their cuts, or fitted values."""
        found: Signature = {}
        for path, module in self._twin.named_modules():
            held = (*module._parameters.items(), *module._buffers.items())
            origins = applied.cuts if path not in refitted else {}
            tensors = tuple((name, *self._told(tensor, origins)) for name, tensor in held if tensor is not None)
            found[path] = (type(module).__name__, getattr(module, "rerouted", ()), tensors)
        return found

    def _told(self, tensor: Tensor, origins: Mapping[Any, tuple[Tensor, Cuts]]) -> tuple[Any, ...]:
        """Return the identity and cuts of a dense tensor; sums of a fitted one, made anew with every edit."""
        old, cuts = origins.get(tensor, (tensor, ()))
        if id(old) in self._dense:
            return id(old), tuple((cut.dim, tuple(cut.kept.tolist())) for cut in cuts)
        return float(tensor.sum(dtype=torch.float64)), float(torch.linalg.vector_norm(tensor.float()))


class Scorers:
    """Scorers on several parts of the held-out samples.

    Args:
        model: Dense network, in evaluation mode.
        graph: Computation graph of the model.
        maker: Makes edits of variants.
        samples: Calibration samples on the model's device.
    """

    def __init__(self, model: nn.Module, graph: ComputationGraph, maker: EditMaker, samples: CalibrationSet) -> None:
        self._model, self._graph, self._maker, self._samples = model, graph, maker, samples

    @cached_property
    def alone(self) -> Scorer:
        """Scorer of variants alone, on the session's own held-out samples."""
        return self._on(self._samples.held_out).begin()

    def near(self, base: Chosen, turn: int) -> Scorer:
        """Return a scorer of choices near a base, on the next part of the further samples if there are any.

        Args:
            base: Base choice.
            turn: Number of the round; parts are taken in turn.
        """
        own = self._further[turn % len(self._further)] if self._further else self.alone
        for other in self._further:
            if other is not own:
                other.forget()
        own.rebase(base)
        return own

    def divergence(self, chosen: Chosen) -> float:
        """Return the mean divergence of a choice over the samples of all parts."""
        parts = (self.alone, *self._further)
        sizes = [part.objective.n_samples for part in parts]
        return sum(size * part.divergence(chosen) for size, part in zip(sizes, parts, strict=True)) / sum(sizes)

    @cached_property
    def _further(self) -> list[Scorer]:
        size = self.alone.objective.n_samples
        return [self._on(part) for part in _in_parts(self._samples.further((PARTS - 1) * size), size)]

    def _on(self, batches: Sequence[ModelInputs]) -> Scorer:
        around = normalisation(self._model, batches, narrowed=self._maker.network is not None)
        return Scorer(self._model, self._graph, self._maker, OutputDivergence(batches, around=around))


def _in_parts(batches: Iterable[ModelInputs], size: int) -> list[list[ModelInputs]]:
    """Return batches in parts of so many samples, whatever the batches; a rest that is smaller joins the last part."""
    found, room = list[list[ModelInputs]](), 0
    for batch in batches:
        begin = 0
        while begin < batch.n_samples:
            if not room:
                found.append([])
                room = size
            end = min(batch.n_samples, begin + room)
            found[-1].append(batch.select(torch.arange(begin, end)))
            begin, room = end, room - (end - begin)
    if room and len(found) > 1:
        rest = found.pop()
        found[-1] += rest
    return found
