"""Weights that wait in host memory: copied back only where they changed."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from prunerecover.routing.host_memory import HostMemory

VALUES = torch.arange(3.0)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> HostMemory:
    """Return host memory for a simulated device: moved tensors count as on the device."""
    there: dict[int, int] = {}

    def holds(self: HostMemory, tensor: Tensor) -> bool:
        return there.setdefault(id(tensor), tensor.data_ptr()) != tensor.data_ptr()

    monkeypatch.setattr(HostMemory, "holds", holds)
    return HostMemory(torch.device("cpu"))


def test_unchanged_values_are_not_copied_back(memory: HostMemory) -> None:
    weight = nn.Parameter(VALUES.clone())
    before = weight.data_ptr()
    memory.to_device(weight)
    there = weight.data_ptr()
    memory.to_device(weight)
    assert weight.data_ptr() == there != before
    assert torch.equal(weight, VALUES)
    memory.back(weight)
    memory.back(weight)
    assert weight.data_ptr() == before


def test_changed_values_come_back(memory: HostMemory) -> None:
    weight, other = nn.Parameter(VALUES.clone()), nn.Parameter(VALUES.clone())
    for tensor in (weight, other):
        memory.to_device(tensor)
    with torch.no_grad():
        weight.mul_(2)
    other.data = VALUES + 1
    for tensor in (weight, other):
        memory.back(tensor)
    assert torch.equal(weight, 2 * VALUES)
    assert torch.equal(other, VALUES + 1)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_brings_its_own_tensors_back(memory: HostMemory, copied: object) -> None:
    weight = nn.Parameter(VALUES.clone())
    memory.to_device(weight)
    other, own = copied((memory, weight))  # type: ignore[operator]
    other.back(own)
    assert torch.equal(own, VALUES)
    assert own.data_ptr() != weight.data_ptr()


@pytest.mark.gpu
def test_values_wait_where_the_bus_reads_them_fastest() -> None:
    memory, weight = HostMemory(torch.device("cuda")), nn.Parameter(VALUES.clone())
    memory.to_device(weight)
    assert weight.is_cuda
    memory.back(weight)
    assert weight.is_pinned()
    assert torch.equal(weight, VALUES)
