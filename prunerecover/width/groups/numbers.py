"""Distinction between numbers of units and numbers of the data.

Both may differ between a narrowed copy and a copy with the same units at zero: a count, because there are fewer units;
a number read off the data (the rows above a threshold), because a norm before takes statistics over different units. A
count is equal in all copies of equal sizes, for any weights.
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
SAME = 1e-5  # relative tolerance: numbers of the data, such as a largest value, are rounded


def same_numbers(one: Sequence[Arithmetic], other: Sequence[Arithmetic]) -> bool:
    """Whether two copies run the same operations with the same numbers, in the same order.

    >>> same_numbers([Arithmetic("div", "", (8.0,))], [Arithmetic("div", "", (6.0,))])
    False
    """
    return len(one) == len(other) and all(_alike(a, b) for a, b in zip(one, other, strict=True))


def changed_numbers(narrowed: Sequence[Arithmetic], masked: Sequence[Arithmetic]) -> dict[int, int]:
    """Find operations in both copies with different numbers; operations of a single copy are passed over.

    Args:
        narrowed: Operations of a copy with fewer units.
        masked: Operations of a copy with the same units at zero.

    Returns:
        Positions in `narrowed`, in order, and positions of the same operations in `masked`.

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
    """Return a model's operations with Python numbers; empty if the forward fails, as without detections.

    Args:
        model: Network, left unchanged.
        inputs: Batch of inputs.
    """
    try:
        return trace_ties(model, inputs).arithmetic
    except Exception:  # code may raise anything
        return ()


def data_numbers(masked: Sequence[Arithmetic], copies: Iterable[Sequence[Arithmetic]]) -> set[int]:
    """Find operations with numbers of the data: a copy of the same sizes has other numbers at the same operations.

    Args:
        masked: Operations of a copy.
        copies: Operations of further copies of the same sizes, with other weights.

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
