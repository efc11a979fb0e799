"""Long lists of cases of one fact: some with every run of the tests, the others with the slow ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(step: int, cases: Iterable[Any]) -> list[Any]:
    """Mark all but every `step`-th case as slow; tuples are the values of several arguments.

    Cases with marks of their own keep those, and are not counted. For a product of lists, a step without a common
    divisor with the lengths of the inner lists takes every value of each.
    """
    found, marked = [*cases], type(pytest.param())
    often = [case for case in found if not isinstance(case, marked)][::step]
    for place, case in enumerate(found):
        if not isinstance(case, marked):
            values = case if isinstance(case, tuple) else (case,)
            found[place] = pytest.param(*values, marks=() if case in often else pytest.mark.slow)
    return found
