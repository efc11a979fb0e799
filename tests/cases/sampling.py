"""Long lists of cases of the same fact: some in every run of the tests, others with the slow ones, or some for all.

Slow runs also take a seeded sample of the others: `PRUNERECOVER_SAMPLE=1 pytest -m slow` takes another sample, and
`=all` takes all.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

MARKED = type(pytest.param())


def one_in(step: int, cases: Iterable[Any]) -> list[Any]:
    """Mark all but every `step`-th case as slow; tuples are the values of several arguments.

    Cases with marks keep them, and are not counted. For a product of lists, a step without a common divisor with the
    lengths of the inner lists takes every value of each.
    """
    found = [*cases]
    return _slow_but(_unmarked(found)[::step], found)


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Mark all but the first cases as slow, as `one_in` does."""
    found = [*cases]
    return _slow_but(_unmarked(found)[:count], found)


def covering(*lists: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return some of all combinations that cover every pair of values from two lists; the first cover most pairs.

    Greedy: the combination with the most new pairs comes next, the first among equals. The result can replace the whole
    product.

    >>> covering("ab", "xy", [1, 2])
    [('a', 'x', 1), ('a', 'y', 2), ('b', 'x', 2), ('b', 'y', 1)]
    """
    product = [*itertools.product(*(range(len(values)) for values in lists))]
    pairs = {places: {*itertools.combinations(enumerate(places), 2)} for places in product}
    missing, found = set().union(*pairs.values()), []
    while missing:
        best = max(product, key=lambda places: len(pairs[places] & missing))
        found.append(best)
        missing -= pairs[best]
    return [tuple(values[place] for values, place in zip(lists, places, strict=True)) for places in found]


def left_out(items: Sequence[pytest.Item], seed: str) -> set[pytest.Item]:
    """Return the cases outside the sample, which has two and a tenth of each test's cases.

    The sample of a test depends on the seed and on the names of its cases alone, so that all workers agree.
    """
    by_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept: set[pytest.Item] = set()
    for name, cases in by_test.items():
        kept |= {*random.Random(f"{seed} {name}").sample(cases, min(len(cases), 2 + len(cases) // 10))}
    return {*items} - kept


def _unmarked(cases: Iterable[Any]) -> list[Any]:
    return [case for case in cases if not isinstance(case, MARKED)]


def _slow_but(often: Sequence[Any], cases: list[Any]) -> list[Any]:
    """Return the cases, with a mark for slow on those that are neither frequent nor already marked."""
    marked = []
    for case in cases:
        if isinstance(case, MARKED):
            marked.append(case)
        else:
            values = case if isinstance(case, tuple) else (case,)
            marked.append(pytest.param(*values, marks=() if case in often else pytest.mark.slow))
    return marked
