"""Judge what stands in for units by the output on held-out samples: each on all batches, or only until it is beaten.

A divergence is a sum over batches of terms that are not negative, so that what has been added up bounds it from below.
In a race the one with the least sum goes on, over the batches that tell most first, until the least sum is complete:
what is beaten by then was run on a part of the batches alone, and the best is the one that all batches would show.
What it is ahead by on that part tells about how far the others are behind it on all. Forms of what one unit leaves are
so much alike that a part of the batches is enough to choose one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from prunerecover.calibration.hidden_states import DenseOutputs, Hidden, keep
from prunerecover.divergence.measure import divergence_of_batch
from prunerecover.divergence.outputs import compared
from prunerecover.model.batches import ModelInputs
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.hooks import recording

Cost = Callable[[int, float], tuple[float, ...]]
Terms = dict[int, float]  # of one model's divergence, by batch
FEW = 16  # samples, enough to tell forms apart that differ


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

    @property
    def told(self) -> list[tuple[float, int]]:
        """Sum and number of all terms of each batch that were ever computed: they tell which batches tell most."""
        return list(zip(self._told, self._asked, strict=True))

    @told.setter
    def told(self, told: Sequence[tuple[float, int]]) -> None:
        self._told, self._asked = [total for total, _ in told], [asked for _, asked in told]

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
            bounds: What each entrant costs at least, as far as is known: it is not run before others cost as much.
            terms: What earlier races added up of each entrant, which are added to and not computed again.
        """
        if not starts:
            return []
        states = _StatesBefore(self._runner, self._batches, starts)
        terms = [Terms() for _ in starts] if terms is None else terms

        def run(entrant: int, number: int) -> float:
            before = states.of(number, starts[entrant])
            with in_place(entrant):
                return self._term(number, starts[entrant], before)

        order = self._most_telling_first()
        best = terms[self._cheapest(order, run, cost, bounds or [-math.inf] * len(starts), terms)]
        return [(self._estimate(own, best) if own or not order else math.inf, len(own) == len(order)) for own in terms]

    def best_form(
        self, entrants: int, start: int, in_place: Callable[[int], AbstractContextManager[None]], hidden: Hidden
    ) -> tuple[int, float]:
        """Return which entrant is the best on a third of the samples, and its divergence on all of them.

        For entrants of which those that are nearly as good would do as well: what one unit may leave.

        Args:
            entrants: How many there are, at least one; the first one of equals is the best.
            start: The first block that they change.
            in_place: Has an entrant in the model inside a `with` block.
            hidden: What enters that block, by batch.
        """

        def run(entrant: int, number: int) -> float:
            with in_place(entrant):
                return self._term(number, start, hidden[number])

        order = self._most_telling_first()
        terms = [Terms() for _ in range(entrants)]
        best = self._cheapest(self._third(order), run, _itself, [-math.inf] * entrants, terms)
        terms[best] |= {number: run(best, number) for number in order if number not in terms[best]}
        return best, self._mean(terms[best])

    def _cheapest(
        self,
        order: Sequence[int],
        run: Callable[[int, int], float],
        cost: Cost,
        bounds: Sequence[float],
        terms: Sequence[Terms],
    ) -> int:
        """Return the entrant that costs least on some batches; the others run until they cost more.

        Args:
            order: Of the batches.
            run: Returns the term of an entrant and a batch.
            cost: See `race`.
            bounds: See `race`.
            terms: What is known of each entrant, and is learnt now.
        """

        def entry(entrant: int, bound: float) -> tuple[tuple[float, ...], bool, int]:
            own = terms[entrant]
            complete = all(number in own for number in order)
            seen = cost(entrant, self._mean(own)) if own else (bound,)
            return seen if complete else max(seen, (bound,)), complete, entrant

        waiting = [entry(entrant, bound) for entrant, bound in enumerate(bounds)]
        heapq.heapify(waiting)
        while not waiting[0][1]:
            entrant = heapq.heappop(waiting)[2]
            number = next(number for number in order if number not in terms[entrant])
            terms[entrant][number] = run(entrant, number)
            heapq.heappush(waiting, entry(entrant, -math.inf))
        return waiting[0][2]

    def _most_telling_first(self) -> list[int]:
        """Return the batches, those first on which models diverged most so far."""
        told = [total / max(asked, 1) for total, asked in zip(self._told, self._asked, strict=True)]
        return sorted(range(len(told)), key=lambda number: -told[number])

    def _third(self, order: Sequence[int]) -> Sequence[int]:
        """Return the first batches with a third of the samples, or a few if that is more."""
        wanted, samples = max(self._samples / 3, FEW), 0
        for count, number in enumerate(order, 1):
            samples += self._batches[number].n_samples
            if samples >= wanted:
                return order[:count]
        return order

    def _estimate(self, terms: Terms, best: Terms) -> float:
        """Return the mean over all batches, given that over some of them and that of the best over all."""
        seen = self._mean({number: best[number] for number in terms})
        part = 1.0 if len(terms) == len(best) or seen <= 0 else seen / self._mean(best)
        return self._mean(terms) / part

    def _mean(self, terms: Terms) -> float:
        return sum(terms[number] for number in sorted(terms)) / max(self._samples, 1)

    def _term(self, number: int, start: int, state: Tensor | None) -> float:
        batch = self._batches[number]
        output = self._runner.finish(batch, start, state, compared)
        found = divergence_of_batch(batch, self._dense.of(number), output)
        self._told[number] += found
        self._asked[number] += 1
        return found


def _itself(_: int, divergence: float) -> tuple[float, ...]:
    return (divergence,)


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
