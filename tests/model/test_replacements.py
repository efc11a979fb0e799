"""What stands in for a removed unit answers in its form, and starts neutral."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from prunerecover.model.replacements import Affine, Constant, Nothing, PassThrough, Replacement, SlopeBias


@pytest.mark.parametrize("returns", [1, 2, 3])
@pytest.mark.parametrize("make", [Nothing, PassThrough, lambda r: Affine(4, r), lambda r: Constant(4, r)])
def test_replacement_answers_in_the_form_of_what_it_replaces(make: Any, returns: int) -> None:
    module = make(returns)
    x = torch.randn(2, 3, 4)
    for out in (module(x, mask=None), module(hidden_states=x, mask=None)):
        parts = out if returns > 1 else (out,)
        assert len(parts) == returns
        assert (x + parts[0]).shape == x.shape
        assert all(p is None for p in parts[1:])
    assert (f"returns={returns}" in repr(module)) == (returns > 1)


def test_replacement_answers_in_a_tuple_of_one() -> None:
    x = torch.randn(2, 3, 4)
    [out] = PassThrough(0)(x)
    assert out is x


def test_initial_maps_are_neutral() -> None:
    x = torch.randn(2, 4)
    assert torch.equal(Affine(4)(x), x)
    assert torch.equal(SlopeBias(4)(x), x)
    assert not Constant(4)(x).any()
    with pytest.raises(NotImplementedError):
        Replacement()(x)
