"""Scores of variants: output divergence on held-out samples, from the first changed layer on.

A search among hundreds of variants fits the samples of its scores: the divergence falls on these samples, and rises on
others. Choices are therefore judged on further samples, too, where there are some, and each round of refinement scores
on another part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property, partial

import torch
from torch import nn

from prunerecover.calibration.samples import CalibrationSet
from prunerecover.depth.layers.prefix import PrefixRunner
from prunerecover.divergence.kept_outputs import KeptOutputs
from prunerecover.divergence.measure import mean_divergence
from prunerecover.divergence.outputs import Outputs, compared
from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.library.edits import Chosen, EditMaker
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.copies import share_copy
from prunerecover.model.paths import is_within, parent_path
from prunerecover.recovery.batchnorm import normalisation
from prunerecover.surgery.apply_edits import edited

PARTS = 4  # of held-out samples: the session's own, and of as many further samples each


class Scorer:
    """Scorer of choices of variants in a network.

    Args:
        model: Dense network, in evaluation mode.
        graph: Computation graph of the model.
        maker: Makes edits of variants.
        batches: Held-out samples on the model's device.
    """

    def __init__(
        self, model: nn.Module, graph: ComputationGraph, maker: EditMaker, batches: Sequence[ModelInputs]
    ) -> None:
        self.maker, self.batches, self._graph = maker, batches, graph
        self._runner = PrefixRunner(graph, len(batches), self._run)
        self._twin = share_copy(model).eval()
        self._numbers = range(len(batches))
        self._dense = KeptOutputs(lambda number: self._run(share_copy(model).eval(), number))
        self._base: Chosen = {}
        self._around = normalisation(model, batches, narrowed=maker.network is not None)

    def begin(self) -> Scorer:
        """Make the dense network the base, whose unchanged prefix choices share; return the scorer."""
        for number, output in enumerate(self._runner.keep(self._twin)):
            self._dense.keep(number, output)
        return self

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return sum(batch.n_samples for batch in self.batches)

    def divergence(self, chosen: Chosen) -> float:
        """Return the mean divergence of a choice; infinite where the network fails, or gives another shape."""
        try:
            found = self._divergence(chosen)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # the network's own code may raise anything without the removed units
            return math.inf
        return found if math.isfinite(found) else math.inf

    def _divergence(self, chosen: Chosen) -> float:
        first = self._first_change(chosen)
        with torch.no_grad(), edited(self._twin, *self.maker.edits(chosen)):
            outputs = self._runner.run(self._twin, first, self._numbers)
            return mean_divergence(self.batches, map(self._dense.of, self._numbers), outputs)

    def rebase(self, chosen: Chosen) -> float:
        """Make a choice the base, whose unchanged prefix later choices share; return the divergence of the base."""
        first = self._first_change(chosen)
        with torch.no_grad(), edited(self._twin, *self.maker.edits(chosen)):
            outputs = self._runner.keep(self._twin, first)
            found = mean_divergence(self.batches, map(self._dense.of, self._numbers), outputs)
        self._base = dict(chosen)
        return found

    def forget(self) -> None:
        """Give up the outputs of the base: choices are run as a whole."""
        self._runner.forget()

    def _first_change(self, chosen: Chosen) -> int:
        """Return the index of the first node with a difference between a choice and the base."""
        changed = [site for site in {*chosen, *self._base} if chosen.get(site) != self._base.get(site)]
        fits = [own[site][1] for own in (chosen, self._base) for site in changed if site in own]
        paths = {path for site in changed for path in self.maker.sites[site].modules}
        paths |= {path for fit in fits for path in fit.modules}
        return min(map(self._first_in, paths), default=0 if changed else len(self._graph.nodes))

    def _first_in(self, path: str) -> int:
        while path:
            inside = [index for module, index in self._graph.first_in.items() if is_within(module, path)]
            if inside:
                return min(inside)
            path = parent_path(path)
        return 0

    def _run(self, network: nn.Module, number: int) -> Outputs:
        with self._around(network):
            return compared(call(network, self.batches[number]))


class Scorers:
    """Scorers on several parts of the held-out samples.

    Args:
        model: Dense network, in evaluation mode.
        graph: Computation graph of the model.
        maker: Makes edits of variants.
        samples: Calibration samples on the model's device.
    """

    def __init__(self, model: nn.Module, graph: ComputationGraph, maker: EditMaker, samples: CalibrationSet) -> None:
        self._make, self._samples = partial(Scorer, model, graph, maker), samples

    @cached_property
    def alone(self) -> Scorer:
        """Scorer of variants alone, on the session's own held-out samples."""
        return self._make(self._samples.held_out).begin()

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
        return sum(part.divergence(chosen) * part.n_samples for part in parts) / sum(part.n_samples for part in parts)

    @cached_property
    def _further(self) -> list[Scorer]:
        size = self.alone.n_samples
        return [self._make(part) for part in _in_parts(self._samples.further((PARTS - 1) * size), size)]


def _in_parts(batches: Iterable[ModelInputs], size: int) -> list[list[ModelInputs]]:
    """Return batches in parts of at least so many samples; a rest that is smaller joins the last part."""
    found = [list[ModelInputs]()]
    for batch in batches:
        if sum(one.n_samples for one in found[-1]) >= size:
            found.append([])
        found[-1].append(batch)
    if len(found) > 1 and sum(one.n_samples for one in found[-1]) < size:
        rest = found.pop()
        found[-1] += rest
    return [part for part in found if part]
