"""Attentions whose heads keep their size, with the reason; and cases outside the default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.engine import unchanged
from cases.models.tiny import BUILD, tiny_images, tiny_inputs, tiny_timm
from torch import Tensor, nn

from prunerecover import Budget, find_groups, find_sites, plan_width, sensitivity
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.width.groups.narrow_edits import narrow_edits
from prunerecover.width.heads.layout import HeadLayout


class ByHand(nn.Module):
    """Attention of 4 heads of 8 between linears, with an extra step inside."""

    def __init__(self, more: str = "", size: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.num_heads, self.more, self.scale = 4, more, 0.2
        self.enter, self.leave = nn.Linear(6, 32), nn.Linear(32, 3)
        self.value, self.key, self.query = (nn.Linear(32, 4 * size) for _ in range(3))
        self.gate = nn.Linear(32, 4 * size)
        self.norm = nn.LayerNorm(size) if more == "norm" else None
        self.table = nn.Parameter(torch.randn(7, size)) if more == "table" else None
        self.out = nn.Linear(4 * size, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        if self.more == "norm":
            q = self.norm(q)
        if self.more == "cosine":
            q, k = (nn.functional.normalize(one, dim=-1) for one in (q, k))
        if self.more == "mean":
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.25
        else:
            scores = q @ k.transpose(-1, -2) * self.scale
        if self.more == "table":
            scores = scores + (q @ self.table.T)[..., : x.shape[1]]
        heads = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        if self.more == "gate":
            heads = heads * self.gate(x).sigmoid()
        return self.leave(x + self.out(heads))


class Across(nn.Module):
    """Attention to other inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.other, self.leave = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 3)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        memory = self.other(x).tanh()
        return self.leave(self.attention(self.enter(x), memory, memory)[0])


def test_an_own_attention_with_a_scale_of_its_own() -> None:
    model, x = ByHand(), torch.randn(2, 7, 6)
    (group,) = find_groups(model, x, "head_dim")
    assert group.scaled_by == 0
    assert [part.tensor for part in HeadLayout.of(group).weights] == ["key.weight", "query.weight", "value.weight"]
    assert group.settings == ()


@pytest.mark.parametrize(
    ("model", "inputs", "match"),
    [
        (lambda: BUILD["llama"](num_key_value_heads=4), tiny_inputs("llama"), "rotary positions, or cosines"),
        (BUILD["llama"], tiny_inputs("llama"), "keys and values that groups of heads share"),
        (lambda: BUILD["qwen3"](num_key_value_heads=4), tiny_inputs("qwen3"), r"norms of queries and keys \('q_norm"),
        (Across, torch.randn(2, 7, 32), "queries and keys that are made of different inputs"),
        (lambda: tiny_timm(qk_norm=True), tiny_images(), r"norms of queries and keys \('q_norm"),
        (lambda: ByHand("norm"), torch.randn(2, 7, 6), r"norms of queries and keys \('norm.weight'\)"),
        (lambda: ByHand("cosine"), torch.randn(2, 7, 6), "rotary positions, or cosines of queries and keys"),
        (lambda: ByHand("table"), torch.randn(2, 7, 6), r"positions in a table as wide as a head \('table'\)"),
        (lambda: ByHand("gate"), torch.randn(2, 7, 6), "4 matrices that make its heads, in place of queries"),
        (lambda: ByHand("mean"), torch.randn(2, 7, 6), "logits that do not show how they are scaled"),
        (ByHand, torch.randn(2, 1, 6), "logits that do not show how they are scaled"),
    ],
)
def test_other_heads_keep_their_size(model: Callable[[], nn.Module], inputs: Any, match: str) -> None:
    network = model()
    with unchanged(network):
        sites = find_sites(network, inputs, "head_dim")
    assert not sites
    for reason in sites.refused.values():
        assert "; " in reason  # with a way out
    with pytest.raises(ValueError, match=match):
        find_groups(network, inputs, "head_dim")


def test_they_are_no_default_and_not_ranked() -> None:
    model, images = tiny_timm(), tiny_images(16)
    assert not find_sites(model, images).of_kind("head_dim")
    match = "Expected kinds among .*, but got 'head_dim'"
    with pytest.raises(ValueError, match=match):
        plan_width(model, Budget(macs=0.2), batches=[images], kinds="head_dim")
    with pytest.raises(ValueError, match=match):
        sensitivity(model, batches=[images], kinds="head_dim")


def test_a_scale_that_follows_another_size_is_refused() -> None:
    model = tiny_timm()
    groups = find_groups(model, tiny_images(), "head_dim")
    (edit,) = narrow_edits(groups, {groups[0].name: torch.arange(5, 8)})
    model.blocks[0].attn.scale = 1.0
    match = r"'scale' of 'blocks.0.attn' to count 8 units of 1, to the power of -0.5, but got 1.0"
    with unchanged(model), pytest.raises(ValueError, match=match):
        apply_edits(model, [edit])
