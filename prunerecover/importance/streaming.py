"""Streamed importances: counted while batches run through the model, so that several share one pass.

A streamed importance is a callable as any other, `importance(context)`, which then runs the model alone. What it
returns to those who know it, by `start`, are its consumers and, once these have seen all batches, its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Protocol

from prunerecover.importance.context import Context, WidthContext
from prunerecover.importance.measuring.activations import Consumer, stream
from prunerecover.importance.measuring.unit_slices import Scores


class Streamed(Protocol):
    """An importance under way."""

    @property
    def passes(self) -> Sequence[Consumer]:
        """Consumers of the batches: the first shares its pass with others, any further one needs its own."""

    def scores(self) -> Scores:
        """Return the scores, once all batches were seen."""


class StreamedImportance:
    """An importance that can share a pass over the batches with others.

    Args:
        start: Function of a context that returns the importance under way.
    """

    def __init__(self, start: Callable[..., Streamed]) -> None:
        self.start = start
        update_wrapper(self, start)

    def __call__(self, context: Context) -> Scores:
        """Return the scores, from passes over the batches of its own."""
        under_way = self.start(context)
        run_together(context, [under_way])
        return under_way.scores()


class OnePass(Consumer):
    """Base of importances with a single consumer, which holds the scores."""

    @property
    def passes(self) -> Sequence[Consumer]:
        """Itself."""
        return (self,)


def run_together(context: Context, importances: Sequence[Streamed]) -> None:
    """Run the batches through the model, once for the first consumers of all, then for each further one.

    Args:
        context: Context, with a loss if a consumer wants gradients.
        importances: Importances under way for this context.

    Raises:
        ValueError: See `stream`.
    """
    groups = context.groups if isinstance(context, WidthContext) else ()
    together = [importance.passes[0] for importance in importances if importance.passes]
    if together:
        stream(context.model, groups, context.batches, together, context.loss)
    for importance in importances:
        for consumer in importance.passes[1:]:
            stream(context.model, groups, context.batches, [consumer])
