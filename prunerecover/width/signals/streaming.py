"""Signals that are counted while batches run through the model, so that several of them share one pass.

A streamed signal is a callable as any other importance of width, `signal(context)`, which then runs the model alone.
What it returns to those who know it, by `start`, are its consumers and, once these have seen all batches, its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Protocol

from prunerecover.width.groups.unit_slices import Scores
from prunerecover.width.signals.activations import Consumer, stream
from prunerecover.width.signals.context import WidthContext


class Streamed(Protocol):
    """A signal under way."""

    @property
    def passes(self) -> Sequence[Consumer]:
        """Consumers of the batches: the first shares its pass with other signals, any further one needs its own."""

    def scores(self) -> Scores:
        """Return the scores, once all batches were seen."""


class StreamedSignal:
    """An importance of width that can share a pass over the batches with others.

    Args:
        start: Returns the signal under way for a context.
    """

    def __init__(self, start: Callable[[WidthContext], Streamed]) -> None:
        self.start = start
        update_wrapper(self, start)

    def __call__(self, context: WidthContext) -> Scores:
        """Return the scores, from passes over the batches of its own."""
        under_way = self.start(context)
        run_together(context, [under_way])
        return under_way.scores()


class OnePass(Consumer):
    """Base of signals with a single consumer, which holds the scores."""

    @property
    def passes(self) -> Sequence[Consumer]:
        """Itself."""
        return (self,)


def run_together(context: WidthContext, signals: Sequence[Streamed]) -> None:
    """Run the batches through the model, once for the first consumers of all signals, then for each further one.

    Args:
        context: With a loss if a consumer wants gradients.
        signals: Under way for this context.

    Raises:
        ValueError: See `stream`.
    """
    together = [signal.passes[0] for signal in signals if signal.passes]
    if together:
        stream(context.model, context.groups, context.batches, together, context.loss)
    for signal in signals:
        for consumer in signal.passes[1:]:
            stream(context.model, context.groups, context.batches, [consumer])
