"""Rules of the rivals in the benchmark of a share of a language model, against oracles on a small Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases.models.tiny import tiny_llama
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data import real
from benchmarks.language import llm_share
from benchmarks.language import llm_share_rivals as rivals
from benchmarks.runner.plans import pruned, share_of_parameters
from prunerecover.model.hooks import removed_after

SHARE, NEURONS = 0.2, 48  # neurons of an MLP of a tiny Llama
EVERY_LAYER = 4 * 3 * 32  # parameters of a neuron in every layer


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(4, 60, (32, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    model = tiny_llama().eval()
    monkeypatch.setattr(real, "BF16", False)
    monkeypatch.setattr(rivals, "OVER", EVERY_LAYER / sum(p.numel() for p in model.parameters()))
    return model


@torch.no_grad()
def neurons(model: Any, ids: Tensor) -> list[np.ndarray]:
    """Return the activations of each layer's neurons, `(N, T, 48)`, by the forward written out."""
    seen: list[Tensor] = []
    norms = [layer.post_attention_layernorm for layer in model.model.layers]
    with removed_after(*(norm.register_forward_hook(lambda _, __, out: seen.append(out)) for norm in norms)):
        model(input_ids=ids)
    mlps = [layer.mlp for layer in model.model.layers]
    return [(F.silu(mlp.gate_proj(x)) * mlp.up_proj(x)).numpy() for mlp, x in zip(mlps, seen, strict=True)]


def rows_kept(dense: nn.Linear, narrow: nn.Linear) -> list[int]:
    """Return the rows of a linear that are in a narrowed one."""
    return [i for i, row in enumerate(dense.weight) if (narrow.weight == row).all(dim=1).any()]


def highest(scores: np.ndarray, count: int) -> list[int]:
    return sorted(np.argsort(-scores)[:count].tolist())


@torch.no_grad()
def loss_without_attentions(model: Any, ids: Tensor, blocks: list[int]) -> float:
    """Return the loss on every fourth text with zero output projections."""
    saved = [model.model.layers[i].self_attn.o_proj.weight.clone() for i in blocks]
    for i in blocks:
        model.model.layers[i].self_attn.o_proj.weight.zero_()
    logits = model(input_ids=ids[3::4]).logits[:, :-1]
    for i, weight in zip(blocks, saved, strict=True):
        model.model.layers[i].self_attn.o_proj.weight.copy_(weight)
    return float(F.cross_entropy(logits.flatten(0, 1), ids[3::4, 1:].flatten()))


def test_two_stages_keep_the_neurons_of_highest_norm_and_the_best_attentions(model: Any, ids: Tensor) -> None:
    gone, other = rivals.two_stages(model, ids, SHARE)
    assert len(gone["attention"]) == rivals.attentions_to_remove(model, SHARE) == 1
    left = [layer.mlp.gate_proj.out_features for layer in other.model.layers]
    assert len(set(left)) == 1
    assert gone["neuron"] == sum(NEURONS - count for count in left)
    assert share_of_parameters(model, other) == pytest.approx(1 - SHARE, abs=rivals.OVER)
    for layer, narrow, activations in zip(model.model.layers, other.model.layers, neurons(model, ids), strict=True):
        wanted = highest(np.sqrt((activations**2).sum(1)).mean(0), left[0])
        assert rows_kept(layer.mlp.gate_proj, narrow.mlp.gate_proj) == wanted
    values = {path: found.mean(dim=0) for path, found in rivals.norms(model, ids, 2).items()}
    attention = share_of_parameters(model, model.model.layers[0].self_attn)
    before: Any = pruned(model, rivals.narrowed(model, ids, SHARE - attention, values, ["neuron"]))
    losses = [loss_without_attentions(before, ids, [i]) for i in range(4)]
    assert gone["attention"] == [int(np.argmin(losses))]


def test_attentions_go_one_by_one_with_the_least_loss(model: Any, ids: Tensor) -> None:
    wanted: list[int] = []
    for _ in range(3):
        left = [i for i in range(4) if i not in wanted]
        wanted.append(min(left, key=lambda i: loss_without_attentions(model, ids, [*wanted, i])))
    assert rivals.least_attentions(model, ids, 3) == wanted


@pytest.mark.parametrize(("share", "count"), [(0.1, 0), (0.2, 2), (0.3, 4)])
def test_the_number_of_attentions_is_by_the_formula(share: float, count: int) -> None:
    """Check SmolLM2-135M: 30 (s / 0.79)^(3 / 1.5), with MLPs three times as large as attentions."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30}
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True}
    with torch.device("meta"):
        network = LlamaForCausalLM(LlamaConfig(**heads, **sizes))
    assert rivals.attentions_to_remove(network, share) == count


def test_minitron_keeps_the_units_of_highest_activation_and_the_best_shape(model: Any, ids: Tensor) -> None:
    values = {path: found.norm(dim=0) for path, found in rivals.norms(model, ids, 1).items()}
    shapes: list[Any] = [pruned(model, rivals.narrowed(model, ids, SHARE, values, kinds)) for kinds in rivals.SHAPES]
    fitting = [own for own in shapes if 1 - share_of_parameters(model, own) <= SHARE + rivals.OVER]
    for layer, narrow, activations in zip(model.model.layers, shapes[0].model.layers, neurons(model, ids), strict=True):
        size = np.sqrt((np.abs(activations).mean(1) ** 2).sum(0))
        wanted = highest(size, narrow.mlp.gate_proj.out_features)
        assert rows_kept(layer.mlp.gate_proj, narrow.mlp.gate_proj) == wanted
    _, found = rivals.minitron(model, ids, SHARE)
    assert rivals.loss_of(found, ids) == pytest.approx(min(loss_without_attentions(own, ids, []) for own in fitting))
    assert share_of_parameters(model, found) == pytest.approx(1 - SHARE, abs=rivals.OVER)


@pytest.mark.slow
@pytest.mark.parametrize("method", llm_share.NATURAL)
def test_a_natural_call_has_its_share(
    method: str, model: Any, ids: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("network", lambda: model), ("KEPT", tmp_path)):
        monkeypatch.setattr(llm_share, name, value)
    monkeypatch.setattr(llm_share, "batches", lambda: [{"input_ids": some} for some in torch.split(ids, 4)])
    gone, other, _ = llm_share.found(method, SHARE)
    assert gone
    assert share_of_parameters(model, other) == pytest.approx(1 - SHARE, abs=0.03)
    assert llm_share.found(method, SHARE)[0] == gone
