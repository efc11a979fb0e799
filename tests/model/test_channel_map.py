"""What a padded shortcut is rewritten as computes the same."""

from __future__ import annotations

import pytest
import torch
from cases.width.narrow import without
from cases.width.narrow_models import Padded
from torch import nn

from prunerecover.cost.macs import count_macs
from prunerecover.model.replacements import ChannelMap
from prunerecover.plan.groups import Slice
from prunerecover.surgery.apply_edits import apply_edits


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64])
@pytest.mark.parametrize(("stride", "first"), [(1, 0), (2, 2), (3, 4)])
def test_channel_map_equals_the_padded_shortcut(dtype: torch.dtype, stride: int, first: int) -> None:
    x = (10 * torch.randn(2, 4, 7, 7)).to(dtype)
    if dtype.is_floating_point:
        x[0, 0, 0, 0], x[0, 1, 0, 0] = torch.nan, torch.inf
    expected = Padded(stride, first, 8 - 4 - first)(x)
    found = ChannelMap(4, 8, stride, first)(x)
    assert found.dtype == dtype
    assert torch.equal(found.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
    assert torch.equal(
        ChannelMap(4, 8, stride, first).bfloat16()(x[0]).nan_to_num(nan=7.0), expected[0].nan_to_num(nan=7.0)
    )


def test_channel_map_is_free_differentiable_and_loaded_like_any_weight() -> None:
    shortcut, x = ChannelMap(4, 8, 2, 2), torch.randn(2, 4, 6, 6, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    weights = torch.randn(2, 8, 3, 3)
    (shortcut(x) * weights).sum().backward()
    (Padded()(twin) * weights).sum().backward()
    assert torch.equal(x.grad, twin.grad)
    assert count_macs(shortcut, x.detach()) == 0
    other = ChannelMap(4, 8, 2, 0)
    other.load_state_dict(shortcut.state_dict())
    assert torch.equal(other(x), shortcut(x))
    assert str(shortcut) == "ChannelMap(4, 8, stride=2)"
    assert not list(shortcut.parameters())


def test_channel_map_without_any_channel_left_is_zero_and_exports() -> None:
    model = nn.Sequential(ChannelMap(4, 8, 2, 2))
    apply_edits(model, [without("0", "channel", 8, (2, 3, 4, 5), (Slice(tensor="0.weight", dim=0),))])
    x = torch.full((1, 4, 4, 4), torch.inf)
    assert torch.equal(model(x), torch.zeros(1, 4, 2, 2))
    full = nn.Sequential(ChannelMap(4, 8, 2, 2))
    for net in (model, full):
        exported = torch.export.export(net.eval(), (torch.ones(1, 4, 4, 4),)).module()
        assert torch.equal(exported(x), net(x))
