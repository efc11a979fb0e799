"""Groups that can be gated, and those that stay out of a plan by gates."""

from __future__ import annotations

import dataclasses

import pytest
from cases.models.hand_made_groups import separable_groups

from prunerecover.width.groups.gates import with_a_gate


def test_units_without_a_place_for_gates_stay_out_of_the_plan() -> None:
    first, second = separable_groups()
    hidden = dataclasses.replace(first, taps=())
    gated = second if second.taps else dataclasses.replace(second, taps=first.taps)
    with pytest.warns(UserWarning, match=rf"{first.name} stay as they are: their units have no place where"):
        assert with_a_gate([hidden, gated]) == (gated,)


def test_where_none_has_a_place_all_stay_in() -> None:
    hidden = tuple(dataclasses.replace(group, taps=()) for group in separable_groups())
    assert with_a_gate(hidden) == hidden
