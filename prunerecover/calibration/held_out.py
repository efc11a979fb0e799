"""Output divergence of replacements on held-out samples: on all batches, or in a race on as few as possible.

A divergence is a sum over batches of nonnegative terms, so a partial sum is a lower bound. In a race, the entrant with
the least partial sum runs next, on the batches with the largest divergences first, until the least sum is complete.
Losers have then run on a part of the batches alone, and the winner is the same as on all batches. The ratio on a
loser's part estimates the divergence on all. Forms of a unit's replacement differ so little that a part of the batches
is enough for a choice.
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
Terms = dict[int, float]  # terms of a model's divergence, by batch
FEW = 16  # samples, enough to tell different forms apart


class HeldOut:
    """Judges a model on held-out batches by the output divergence from the dense model.

    Args:
        runner: Runner of the model; callers change and restore the model.
        dense: Runner of the dense model.
        batches: Held-out batches on the model's device.
    """

    def __init__(self, runner: BlockRunner, dense: BlockRunner, batches: Sequence[ModelInputs]) -> None:
        self._runner, self._batches, self._dense = runner, batches, DenseOutputs(dense, batches)
        self._samples = sum(batch.n_samples for batch in batches)
        self._told = [0.0] * len(batches)  # sums of all computed terms, by batch
        self._asked = [0] * len(batches)

    @property
    def told(self) -> list[tuple[float, int]]:
        """Sum and number of all terms computed so far, by batch; the means order the batches of a race."""
        return list(zip(self._told, self._asked, strict=True))

    @told.setter
    def told(self, told: Sequence[tuple[float, int]]) -> None:
        self._told, self._asked = [total for total, _ in told], [asked for _, asked in told]

    def divergence(self, start: int, hidden: Hidden) -> float:
        """Return the mean divergence over all samples; 0 if there are none.

        Args:
            start: First block to run.
            hidden: Hidden state before the block, by batch.
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
        """Return the divergence of each entrant, and whether it is exact; the cheapest entrant's always is.

        For the other entrants, divergences are estimates from their batches, no less than their partial sums, and
        infinite for entrants that their bounds alone excluded.

        Args:
            starts: First changed block of each entrant.
            in_place: Has an entrant in the model inside a `with` block.
            cost: Cost of an entrant by number and divergence; nondecreasing in the divergence.
            bounds: Lower bound of each entrant's cost; an entrant is not run while cheaper ones remain.
            terms: Terms of each entrant from earlier races, reused and extended in place.
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
        """Return the best entrant on a third of the samples, and the divergence on all samples.

        For entrants where a near-best choice is good enough, such as forms of a unit's replacement.

        Args:
            entrants: Number of entrants, at least one; of equals, the first wins.
            start: First changed block of all entrants.
            in_place: Has an entrant in the model inside a `with` block.
            hidden: Hidden state before the block, by batch.
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
        """Return the entrant with the least cost on some batches; each other entrant runs until the cost is higher.

        Args:
            order: Order of the batches.
            run: Returns the term of an entrant and a batch.
            cost: Cost of an entrant; see `race`.
            bounds: Lower bounds of the costs; see `race`.
            terms: Known terms of each entrant, extended in place.
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
        """Return the batches, in falling order of the mean divergence so far."""
        told = [total / max(asked, 1) for total, asked in zip(self._told, self._asked, strict=True)]
        return sorted(range(len(told)), key=lambda number: -told[number])

    def _third(self, order: Sequence[int]) -> Sequence[int]:
        """Return the first batches with a third of the samples, or with `FEW` samples if more."""
        wanted, samples = max(self._samples / 3, FEW), 0
        for count, number in enumerate(order, 1):
            samples += self._batches[number].n_samples
            if samples >= wanted:
                return order[:count]
        return order

    def _estimate(self, terms: Terms, best: Terms) -> float:
        """Estimate the mean over all batches, from an entrant's partial terms and the best entrant's full terms."""
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
    """Hidden states before some blocks, kept while there is room; each batch runs once, on first use."""

    def __init__(self, runner: BlockRunner, batches: Sequence[ModelInputs], starts: Sequence[int]) -> None:
        self._runner, self._batches, self._starts = runner, batches, sorted(set(starts))
        self._kept, self._places = Hidden(), dict[tuple[int, int], int]()

    def of(self, number: int, start: int) -> Tensor | None:
        """Return the hidden state before block `start` on batch `number`; None if not kept."""
        if (number, start) not in self._places:
            *before, last = self._starts
            with recording({str(stop): self._runner.blocks[stop] for stop in before}) as seen:
                at_last = self._runner.advance(self._batches[number], 0, None, last)
            for stop in self._starts:
                self._places[number, stop] = len(self._kept)
                keep(self._kept, at_last if stop == last else seen[f"{stop}.in"])
        return self._kept[self._places[number, start]]
