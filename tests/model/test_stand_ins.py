"""Replacement modules without parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from prunerecover.model.replacements import PassThrough, carry_attributes, replacement_for


@pytest.mark.parametrize(("leaves", "neutral"), [("zero", torch.add), ("zeros", torch.add), ("one", torch.mul)])
def test_neutral_element_leaves_the_other_operand(leaves: str, neutral: object) -> None:
    x = torch.randn(2, 3, dtype=torch.float64)
    made = replacement_for(leaves)(x)
    assert made.dtype == x.dtype
    assert torch.equal(neutral(x, made), x)  # type: ignore[operator]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_empty_leaves_a_concatenation_alone(dim: int) -> None:
    x = torch.randn(2, 3, 4)
    assert torch.equal(torch.cat([x, replacement_for("empty", dim=dim)(x)], dim), x)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_pooling_averages_over_the_windows_of_the_convolution(dims: int) -> None:
    x = torch.randn(2, 4, *(9,) * dims)
    window = ((3,) * dims, (2,) * dims, (1,) * dims)
    pooled = replacement_for("pool", window=window)(x)
    conv = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    ones = torch.ones(4, 1, *(3,) * dims)
    total, count = (conv(t, ones, stride=2, padding=1, groups=4) for t in (x, torch.ones_like(x)))
    torch.testing.assert_close(pooled, total / count)


def test_plain_data_is_carried_and_objects_are_not() -> None:
    old, new = nn.Conv2d(2, 3, 3, stride=2), PassThrough()
    old.f, old.i, old.kind, old.parts = [-1, 3], 7, None, {"a": 1}
    carry_attributes(old, new)
    assert (new.f, new.i, new.kind, new.stride, new.out_channels) == ([-1, 3], 7, None, (2, 2), 3)
    assert not hasattr(new, "parts")
    assert new.returns == 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_weights_leave_their_dtype_and_nothing_to_save(device: str) -> None:
    new = PassThrough()
    carry_attributes(nn.Linear(2, 3, bias=False, device=device, dtype=torch.float64), new)
    assert (new.weight.dtype, new.weight.numel(), new.bias) == (torch.float64, 0, None)
    assert not new.weight.is_meta
    assert not new.state_dict()
    assert new.to(torch.bfloat16).weight.dtype == torch.bfloat16
