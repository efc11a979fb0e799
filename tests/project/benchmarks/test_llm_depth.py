"""Rivals of the benchmark of blocks out of a language model, on a small Llama."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases.models.tiny import tiny_llama
from torch import Tensor, nn

from benchmarks.language import llm_depth, llm_depth_subfit
from benchmarks.language import llm_depth_rivals as rivals
from benchmarks.language.llm_depth_subfit import bypasses, sub_fit
from benchmarks.runner.plans import pruned, share_of_parameters


def logits(model: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=ids).logits
    return found


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(4, 60, (8, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [1, 2, 12, 32, 576])
def test_a_hadamard_matrix_is_orthogonal_with_entries_of_one_size(size: int) -> None:
    found = rivals.hadamard(size)
    assert torch.allclose(found @ found.T, torch.eye(size), atol=1e-5)
    assert torch.allclose(found.abs(), torch.full((size, size), size**-0.5))


def test_orders_without_a_matrix_are_refused() -> None:
    with pytest.raises(ValueError, match="No Hadamard matrix of order 20 is a product of orders 12 and 2"):
        rivals.hadamard(20)


def test_a_patch_over_blocks_without_effect_is_the_identity(ids: Tensor) -> None:
    model = tiny_llama().eval()
    for layer in model.model.layers[1:3]:
        for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            weight.data.zero_()
    run, pruned = rivals.linear_patch(model, ids, 2)
    assert run == [1, 2]
    assert torch.allclose(logits(pruned, ids), logits(model, ids), atol=1e-4)
    assert torch.allclose(pruned.model.layers[0].patch.weight, torch.zeros(32, 32), atol=1e-4)


def test_a_patch_is_symmetric_and_tuned_towards_the_dense_logits(ids: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "TOP", 8)
    monkeypatch.setattr(rivals, "SLOW", 1e-2)
    model = tiny_llama().eval()
    (run, pruned), (_, tuned) = (how(model, ids, 2) for how in (rivals.linear_patch, rivals.tuned_patch))
    patch = pruned.model.layers[run[0] - 1].patch.weight
    assert torch.allclose(patch, patch.T, atol=1e-5)
    far, near = ((logits(own, ids) - logits(model, ids)).pow(2).mean() for own in (pruned, tuned))
    assert near < far


def test_bypasses_of_whole_rank_find_linear_branches_and_share_a_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_depth_subfit, "RIDGE", 0)
    x = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    maps = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(1))
    first, second = bypasses([(x, x, x @ map_ + 3) for map_ in maps], 6)
    assert first[0] is second[0]
    assert torch.allclose(first(x), x @ maps[0] + 3, atol=1e-3)


def test_attentions_and_mlps_leave_bypasses_with_the_parameters_of_an_mlp(ids: Tensor) -> None:
    model = tiny_llama().eval()
    gone, pruned = sub_fit(model, ids, 2)
    assert {kind: len(numbers) for kind, numbers in gone.items()} == {"attention": 2, "mlp": 3}
    block, left, whole = (sum(p.numel() for p in own.parameters()) for own in (model.model.layers[0], pruned, model))
    assert whole - 3 * block < left <= whole - 2 * block + 8 * 32  # norms and biases
    assert logits(pruned, ids).isfinite().all()
    assert pruned.generate(ids[:1], max_new_tokens=4, do_sample=False).shape == (1, 16)


@pytest.mark.slow
@pytest.mark.parametrize("method", llm_depth.NATURAL)
def test_a_natural_call_has_its_size(method: str, ids: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama().eval()
    for name, value in (("network", lambda: model), ("texts", lambda: ids), ("KEPT", tmp_path)):
        monkeypatch.setattr(llm_depth, name, value)
    plan = llm_depth.plan_of(method, "block", 1)
    left, block = (share_of_parameters(model, other) for other in (pruned(model, plan), model.model.layers[0]))
    assert left == pytest.approx(1 - block, abs=0.05)
    assert all(isinstance(found, list) == (kind in llm_depth.COUNTS) for kind, found in llm_depth.removed(plan).items())
