"""Fits and moments in files, and weights cut when used, give the plan that is made in memory, bit for bit."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from cases.models.tiny import VOCABULARY, tiny_llama
from cases.planning.networks import images, vit
from torch import Tensor, nn

from prunerecover import Budget, plan_pruning
from prunerecover.files import held_tensors
from prunerecover.model.narrow import when_used
from prunerecover.plan.plan import Plan

TEXTS = torch.randint(3, VOCABULARY, (16, 12), generator=torch.Generator().manual_seed(0))


def of_llama() -> Plan:
    return plan_pruning(tiny_llama(), Budget(params=0.25), batches=[{"input_ids": some} for some in TEXTS.split(8)])


def of_vit() -> Plan:
    return plan_pruning(vit(depth=2), Budget(macs=0.3), batches=images(6))


@pytest.mark.slow
@pytest.mark.parametrize(("make", "wide"), [(of_llama, False), (of_llama, True), (of_vit, False)])
def test_a_plan_made_in_files_is_the_plan_made_in_memory(
    make: Callable[[], Plan], wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wide:  # linears that are only cut
        monkeypatch.setattr("prunerecover.library.moments.LARGEST", 24)
    wanted, counts = make(), Counter[str]()
    init = when_used.WhenUsed.__init__

    def counted(*args: object) -> None:
        counts["cut"] += 1
        init(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(held_tensors, "MOST_HELD", 0)
    monkeypatch.setattr(when_used, "LARGE", 0)
    monkeypatch.setattr(when_used.WhenUsed, "__init__", counted)
    found = make()
    assert counts["cut"]
    assert found.edits == wanted.edits
    assert found.evidence == wanted.evidence
    assert found.tensors.keys() == wanted.tensors.keys()
    for name, value in found.tensors.items():
        assert type(value) is Tensor
        assert torch.equal(value, wanted.tensors[name]), name


def test_tensors_are_held_in_memory_while_there_is_room_and_give_the_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # others give their room back before
    monkeypatch.setattr(held_tensors, "MOST_HELD", 1000)
    monkeypatch.setattr(held_tensors, "_held", [0])
    first, second = torch.arange(100.0), torch.arange(200.0).reshape(10, 20).double()
    assert held_tensors.held(first) is first
    mapped = held_tensors.held(second)
    assert mapped is not second
    assert torch.equal(mapped, second)
    assert mapped.dtype == torch.float64
    del first
    gc.collect()
    assert held_tensors._held == [0]
    parameter = nn.Parameter(second)
    assert held_tensors.held(parameter) is parameter


def test_a_cut_weight_computes_as_its_copy_and_gradients_pass() -> None:
    torch.manual_seed(0)
    weight, kept, calls = torch.randn(8, 6), torch.tensor([0, 2, 5]), Counter[str]()

    def cut() -> Tensor:
        calls["cut"] += 1
        return weight.index_select(1, kept)

    x = torch.randn(2, 4, 3, requires_grad=True)
    lazy, plain = nn.Linear(3, 8), nn.Linear(3, 8)
    plain.weight = nn.Parameter(weight[:, kept].contiguous(), requires_grad=False)
    lazy.weight, lazy.bias = nn.Parameter(when_used.WhenUsed(cut, (8, 3), weight), requires_grad=False), plain.bias
    assert not calls
    assert lazy.weight.shape == (8, 3)
    found, wanted = lazy(x), plain(x)
    assert torch.equal(found, wanted)
    (own,), (other,) = (torch.autograd.grad(output.square().sum(), x) for output in (found, wanted))
    assert torch.equal(own, other)
    assert torch.equal(when_used.computed(lazy.weight.detach()), plain.weight)
    assert when_used.computed(plain.weight) is plain.weight
    with pytest.raises(RuntimeError, match="Expected a tensor to write to, but the values of this one are computed"):
        lazy.weight.data.zero_()


def test_a_full_folder_of_temporary_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(held_tensors, "MOST_HELD", 0)
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match=r"Expected room for 4 MB in .*No space left on device. Set TMPDIR to a folder"):
        held_tensors.held(torch.ones(1 << 20))
