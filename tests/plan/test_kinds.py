"""Kinds of units: one table says what is true of each."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest

from prunerecover.plan.kinds import KINDS, TRAITS, WIDTH_KINDS, Kind, WidthKind, holders_first


def test_the_table_has_the_kinds_of_the_types_in_their_order() -> None:
    assert get_args(Kind) == KINDS
    assert get_args(WidthKind) == WIDTH_KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kind_holds_is_of_its_dimension_and_sorted_after_it(kind: str) -> None:
    for inside in TRAITS[kind].holds:
        assert TRAITS[inside].dimension == TRAITS[kind].dimension
        assert holders_first(kind) < holders_first(inside)


def test_kinds_of_one_figure_can_be_told_apart() -> None:
    colors = [TRAITS[kind].color for kind in WIDTH_KINDS]
    assert all(a != b for a, b in pairwise(sorted(colors)))
