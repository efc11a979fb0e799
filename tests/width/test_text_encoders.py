"""Encoders of text whose attentions have more than projections: tables of position biases, and shared ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from prunerecover import Budget, apply_plan, plan_width

IDS = torch.randint(2, 60, (4, 9), generator=torch.Generator().manual_seed(0))
BATCHES = [{"input_ids": IDS, "labels": torch.arange(4) % 3}]
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "num_labels": 3,
}


def mpnet() -> Any:
    torch.manual_seed(0)
    return transformers.MPNetForSequenceClassification(transformers.MPNetConfig(**SIZES)).eval()


def deberta() -> Any:
    torch.manual_seed(0)
    attention = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
    return transformers.DebertaV2ForSequenceClassification(transformers.DebertaV2Config(**SIZES, **attention)).eval()


def test_heads_of_mpnet_go_with_their_column_of_position_biases() -> None:
    """All layers share one table, whose module counts heads that are not those of any attention."""
    model, masked = mpnet(), mpnet()
    plan = plan_width(model, Budget(remove={"head": 1}), batches=BATCHES, replace="zero")
    (edit,) = plan.edits
    (gone,) = edit.gone
    apply_plan(model, plan)
    assert model.mpnet.encoder.relative_attention_bias.weight.shape[1] == 3
    with torch.no_grad():
        for layer in masked.mpnet.encoder.layer:
            layer.attention.attn.o.weight[:, 8 * gone : 8 * gone + 8] = 0
        torch.testing.assert_close(model(IDS).logits, masked(IDS).logits)


@pytest.mark.parametrize("importance", ["gate_taylor", "magnitude"])
def test_values_of_deberta_lose_the_same_channels_in_every_head(importance: str) -> None:
    """No module sees them alone; a gate multiplies them in all heads."""
    model = deberta()
    plan = plan_width(model, Budget(macs=0.4), batches=BATCHES, importance=importance, replace="zero")
    assert any("value_proj" in edit.unit for edit in plan.edits)
    apply_plan(model, plan)
    assert model(IDS).logits.isfinite().all()
