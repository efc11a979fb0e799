"""Hashes of a model's tensors and weights."""

from __future__ import annotations

import torch
from cases.engine import build
from cases.models.tiny import tiny_timm
from torch import nn

from prunerecover.model.hashing import tensors_hash, weights_hash


def test_hashes_see_names_shapes_and_values() -> None:
    model = build("timm")
    assert tensors_hash(model) == tensors_hash(build("timm").half())
    assert tensors_hash(model) != tensors_hash(tiny_timm(depth=3))
    assert weights_hash(model) == weights_hash(build("timm").bfloat16())
    other = build("timm")
    with torch.no_grad():
        other.blocks[2].attn.qkv.weight[0, 0] += 1
    assert weights_hash(model) != weights_hash(other)
    assert weights_hash(nn.Linear(2, 2, device="meta")) is None
