"""Small networks of the families with groups, and their outputs for comparison."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from cases.models.width import BUILD, LARGE, Built
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from prunerecover.model.batches import as_inputs, call
from prunerecover.width.groups.discovery import find_groups
from prunerecover.width.groups.found import FoundGroups


@cache
def built(name: str) -> Built:
    torch.manual_seed(0)
    return {**BUILD, **LARGE}[name]()


@cache
def found_in(name: str) -> FoundGroups:
    model, inputs = built(name)
    return find_groups(model, inputs)


def outputs(model: nn.Module, inputs: Any) -> list[Tensor]:
    """Return all output tensors of a model; for an SSD the head's, because ties make its boxes arbitrary."""
    seen: list[Any] = []
    module = model.head if type(model).__name__ == "SSD" else model
    handle = module.register_forward_hook(lambda *args: seen.append(args[-1]))
    call(model, as_inputs(inputs))
    handle.remove()
    return [leaf for leaf in tree_leaves(seen) if isinstance(leaf, Tensor)]


def assert_equal(one: list[Tensor], other: list[Tensor], tolerance: float = 1e-4) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance * float(b.abs().max() + 1e-12), rtol=tolerance)
