"""Subnormal weights become zero at merge, reconstruction and export; all other weights stay as they are."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from cases.depth.conv_blocks import images, labelled
from cases.engine import build
from torch import nn

from prunerecover import Budget, apply_plan, export, merge, plan_width
from prunerecover.model.batches import ModelInputs
from prunerecover.recovery.reconstruction import fit_layers
from prunerecover.runtimes.subnormals import flush_subnormals, without_subnormals

SMALL = {torch.float64: 1e-310, torch.float32: 1e-40, torch.bfloat16: 1e-40, torch.float16: 1e-6}


def subnormals(network: nn.Module) -> int:
    """Count by the bits: an exponent of zero, and another fraction than zero."""
    weights = (weight.detach().numpy().view(np.uint32).ravel() for weight in network.parameters())
    return sum(int(((bits << 1 < 1 << 24) & (bits << 1 > 0)).sum()) for bits in weights)


@pytest.mark.parametrize("dtype", SMALL)
def test_subnormal_numbers_become_zero_except_in_half_precision(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    values = torch.tensor([[SMALL[dtype], -SMALL[dtype], tiny, -tiny, 0.0, 1.0, torch.nan, -torch.inf]], dtype=dtype)
    linear = nn.Linear(8, 1, bias=False, dtype=dtype)
    linear.weight = nn.Parameter(values.clone())
    half = dtype == torch.float16
    assert flush_subnormals(linear) == (0 if half else 2)
    values[:, :2] *= half
    torch.testing.assert_close(linear.weight.detach(), values, atol=0, rtol=0, equal_nan=True)


def test_a_network_without_subnormal_numbers_is_not_copied() -> None:
    network = nn.Linear(2, 2)
    assert without_subnormals(network) is network
    with torch.inference_mode():
        made_there = nn.Linear(2, 2)
        nn.init.constant_(made_there.weight, 1e-40)
    assert flush_subnormals(made_there) == 4
    assert flush_subnormals(nn.Linear(2, 2, device="meta")) == 0


def test_merge_writes_no_subnormal_numbers() -> None:
    network = build("timm_all")
    nn.init.constant_(network.blocks[1].mlp.fc1.weight, 1e-30)
    nn.init.constant_(network.blocks[1].mlp.fc2.weight, 1e-10)
    network.blocks[1].mlp.act = nn.Identity()
    nn.init.constant_(network.head.weight, 1e-40)
    merge(network)
    assert subnormals(network) == 0


def test_reconstruction_writes_no_subnormal_numbers() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    dense.eval()(images(2, 0))
    plan = plan_width(dense, Budget(macs=0.3), batches=labelled())
    network = copy.deepcopy(dense)
    apply_plan(network, plan)
    with torch.no_grad():
        network[-1].weight[0] = 1e-40
    fit_layers(network, dense, plan, [ModelInputs((pixels,)) for pixels, _ in labelled()])
    assert subnormals(network) == 0


def test_export_writes_no_subnormal_numbers_and_leaves_the_network_alone(tmp_path: Path) -> None:
    network = nn.Linear(2, 2)
    nn.init.constant_(network.weight, 1e-40)
    export(network, tmp_path / "model.pt2", torch.ones(1, 2), dynamic=False)
    written = torch.export.load(tmp_path / "model.pt2").state_dict
    assert not written["network.weight"].any()
    assert subnormals(network) == 4
