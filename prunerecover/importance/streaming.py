"""Streamed importances: counters on a shared pass of the batches through the model.

A streamed importance is a callable like any importance; `importance(context)` runs the model for that importance alone.
Its `start` returns the consumers for a shared pass and, after all batches, the scores.
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
        """Consumers of the batches: the first shares a pass with other importances, each further one runs alone."""

    def scores(self) -> Scores:
        """Return the scores, once all batches were seen."""


class StreamedImportance:
    """An importance with consumers for a shared pass over the batches.

    Args:
        start: Function from a context to the importance under way.
    """

    def __init__(self, start: Callable[..., Streamed]) -> None:
        self.start = start
        update_wrapper(self, start)

    def __call__(self, context: Context) -> Scores:
        """Return the scores, from separate passes over the batches."""
        under_way = self.start(context)
        run_together(context, [under_way])
        return under_way.scores()


class OnePass(Consumer):
    """Base of importances with a single consumer, which holds the scores."""

    @property
    def passes(self) -> Sequence[Consumer]:
        """The importance itself, as its only consumer."""
        return (self,)


def run_together(context: Context, importances: Sequence[Streamed]) -> None:
    """Run the batches through the model, once for all first consumers, then for each further consumer.

    Args:
        context: Context, with a loss if a consumer wants gradients.
        importances: Importances under way for the context.

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
