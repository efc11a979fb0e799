"""Judge what stands in for units by the output on held-out samples: each on all batches, or only until it is beaten.

A divergence is a sum over batches of terms that are not negative, so that what has been added up bounds it from below.
In a race the one with the least sum goes on, over the batches that tell most first, until the least sum is complete:
what is beaten by then was run on a part of the batches alone, and the best is the one that all batches would show.
What it is ahead by on that part tells about how far the others are behind it on all.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from prunerecover.calibration.divergence import divergence_of_batch
from prunerecover.calibration.hidden_states import DenseOutputs, Hidden, keep
from prunerecover.model.batches import ModelInputs
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.hooks import recording

Cost = Callable[[int, float], tuple[float, ...]]
Terms = dict[int, float]  # of one model's divergence, by batch


class HeldOut:
    """Judges a model on held-out batches by the output divergence from the dense model.

    Args:
        runner: Of the model, which callers change and put back.
        dense: Of the dense model.
        batches: On the model's device.
    """

    def __init__(self, runner: BlockRunner, dense: BlockRunner, batches: Sequence[ModelInputs]) -> None:
        self._runner, self._batches, self._dense = runner, batches, DenseOutputs(dense, batches)
        self._samples = sum(batch.n_samples for batch in batches)
        self._told = [0.0] * len(batches)  # sums of all terms of a batch that were ever computed
        self._asked = [0] * len(batches)

    def divergence(self, start: int, hidden: Hidden) -> float:
        """Return the mean divergence over all samples; 0 if there are none.

        Args:
            start: First block to run.
            hidden: What enters it, by batch.
        """
        return sum(self._term(number, start, state) for number, state in enumerate(hidden)) / max(self._samples, 1)

    def race(
        self,
        starts: Sequence[int],
        in_place: Callable[[int], AbstractContextManager[None]],
        cost: Cost,
        hidden: Hidden | None = None,
        bounds: Sequence[float] | None = None,
        terms: Sequence[Terms] | None = None,
    ) -> list[tuple[float, bool]]:
        """Return the divergence of each entrant, and whether it is exact, as that of the cheapest is.

        The others' are estimated from the batches on which they were beaten, at no less than was added up there; they
        are infinite where a bound alone was enough.

        Args:
            starts: The first block that each entrant changes.
            in_place: Has an entrant in the model inside a `with` block.
            cost: Of an entrant by its number and its divergence, in which it does not fall.
            hidden: What enters that block, by batch, where it is the same one for all and that is known.
            bounds: What each entrant costs at least, as far as is known: it is not run before others cost as much.
            terms: What earlier races added up of each entrant, which are added to and not computed again.
        """
        told = [total / max(asked, 1) for total, asked in zip(self._told, self._asked, strict=True)]
        order = sorted(range(len(told)), key=lambda number: -told[number])
        states = _StatesBefore(self._runner, self._batches, starts)
        terms = [Terms() for _ in starts] if terms is None else terms

        def at_least(entrant: int, bound: float) -> tuple[tuple[float, ...], bool, int]:
            own = terms[entrant]
            complete = len(own) == len(order)
            seen = cost(entrant, self._mean(own)) if own else (bound,)
            return seen if complete else max(seen, (bound,)), complete, entrant

        waiting = [at_least(entrant, bound) for entrant, bound in enumerate(bounds or [-math.inf] * len(starts))]
        heapq.heapify(waiting)
        while waiting and not waiting[0][1]:
            entrant = heapq.heappop(waiting)[2]
            own, start = terms[entrant], starts[entrant]
            number = next(number for number in order if number not in own)
            before = states.of(number, start) if hidden is None else hidden[number]
            with in_place(entrant):
                own[number] = self._term(number, start, before)
            heapq.heappush(waiting, (cost(entrant, self._mean(own)), len(own) == len(order), entrant))
        best = terms[waiting[0][2]] if waiting else Terms()
        return [(self._estimate(own, best) if own or not order else math.inf, len(own) == len(order)) for own in terms]

    def _estimate(self, terms: Terms, best: Terms) -> float:
        """Return the mean over all batches, given that over some of them and that of the best over all."""
        seen = self._mean({number: best[number] for number in terms})
        part = 1.0 if len(terms) == len(best) or seen <= 0 else seen / self._mean(best)
        return self._mean(terms) / part

    def _mean(self, terms: Terms) -> float:
        return sum(terms[number] for number in sorted(terms)) / max(self._samples, 1)

    def _term(self, number: int, start: int, state: Tensor | None) -> float:
        batch = self._batches[number]
        output = self._runner.finish(batch, start, state)
        found = divergence_of_batch(batch, self._dense.of(number), output)
        self._told[number] += found
        self._asked[number] += 1
        return found


class _StatesBefore:
    """What enters some blocks, by batch, while there is room; a batch is run when it is asked for first."""

    def __init__(self, runner: BlockRunner, batches: Sequence[ModelInputs], starts: Sequence[int]) -> None:
        self._runner, self._batches, self._starts = runner, batches, sorted(set(starts))
        self._kept, self._places = Hidden(), dict[tuple[int, int], int]()

    def of(self, number: int, start: int) -> Tensor | None:
        """Return what enters block `start` on batch `number`; None if it was not kept."""
        if (number, start) not in self._places:
            *before, last = self._starts
            with recording({str(stop): self._runner.blocks[stop] for stop in before}) as seen:
                at_last = self._runner.advance(self._batches[number], 0, None, last)
            for stop in self._starts:
                self._places[number, stop] = len(self._kept)
                keep(self._kept, at_last if stop == last else seen[f"{stop}.in"])
        return self._kept[self._places[number, start]]
