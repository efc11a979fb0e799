"""Tell numbers that follow how many units there are from those that follow the data.

Both may differ between a narrowed copy and one in which the same units are zero: a count, because there are fewer of
them; what is read off the data (how many rows exceed a threshold), because a norm between them takes its statistics
over other units. A count is the same in all copies of the same sizes, whatever their weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

import numpy as np
from torch import nn

from prunerecover.graph.dimensions.ties import Arithmetic
from prunerecover.graph.trace import trace_ties
from prunerecover.model.batches import ModelInputs

Kind = tuple[str, str, int]
SAME = 1e-5  # relative: numbers that data give, such as a largest value, are rounded


def same_numbers(one: Sequence[Arithmetic], other: Sequence[Arithmetic]) -> bool:
    """Whether two copies run the same operations with the same numbers, in the same order.

    >>> same_numbers([Arithmetic("div", "", (8.0,))], [Arithmetic("div", "", (6.0,))])
    False
    """
    return len(one) == len(other) and all(_alike(a, b) for a, b in zip(one, other, strict=True))


def changed_numbers(narrowed: Sequence[Arithmetic], masked: Sequence[Arithmetic]) -> dict[int, int]:
    """Find operations that both copies run, with other numbers; those that only one of them runs are passed over.

    Args:
        narrowed: Of a copy with fewer units.
        masked: Of one in which the same units are zero.

    Returns:
        Positions in `narrowed`, in order, and those of the same operations in `masked`.

    >>> changed_numbers([Arithmetic("div", "", (6.0,))], [Arithmetic("mul", "", (2.0,)), Arithmetic("div", "", (8.0,))])
    {0: 1}
    """
    kinds, others = [_kind(a) for a in narrowed], [_kind(a) for a in masked]
    if kinds == others:
        pairs = [(i, i) for i in range(len(kinds))]
    else:
        blocks = SequenceMatcher(None, kinds, others, autojunk=False).get_matching_blocks()
        pairs = [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]
    return {i: j for i, j in pairs if not _alike(narrowed[i], masked[j])}


def arithmetic_of(model: nn.Module, inputs: ModelInputs) -> Sequence[Arithmetic]:
    """Return what a model computes with Python numbers; nothing if it fails, as some do that detect nothing.

    Args:
        model: Is left as it was.
        inputs: One batch.
    """
    try:
        return trace_ties(model, inputs).arithmetic
    except Exception:  # whatever code raises
        return ()


def data_numbers(masked: Sequence[Arithmetic], copies: Iterable[Sequence[Arithmetic]]) -> set[int]:
    """Find operations whose numbers follow the data: a copy of the same sizes runs them with others in their place.

    Args:
        masked: Of one copy.
        copies: Of others of the same sizes, with other weights.

    Returns:
        Positions in `masked`.

    >>> data_numbers([Arithmetic("div", "", (8.0,))], [[Arithmetic("div", "", (3.0,))]])
    {0}
    """
    found: set[int] = set()
    for copy in copies:
        if list(copy) != list(masked):
            for what, start, stop, first, last in SequenceMatcher(None, masked, copy, autojunk=False).get_opcodes():
                instead = {_kind(a) for a in copy[first:last]} if what == "replace" else set()
                found.update(i for i in range(start, stop) if _kind(masked[i]) in instead)
    return found


def _kind(arithmetic: Arithmetic) -> Kind:
    return arithmetic.operation, arithmetic.path, len(arithmetic.numbers)


def _alike(one: Arithmetic, other: Arithmetic) -> bool:
    return _kind(one) == _kind(other) and np.allclose(one.numbers, other.numbers, rtol=SAME, atol=0, equal_nan=True)
