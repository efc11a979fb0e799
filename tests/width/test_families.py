"""Families give up units by a plan, train on, and are the same in a new process; encoders of text, encoder-decoders."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from cases.models.families import FAMILIES, family, reloaded, squares
from cases.width.groups import outputs

from prunerecover import Budget, apply_plan, plan_width, save_pruned
from prunerecover.cost.macs import count_macs
from prunerecover.model.batches import as_inputs


@pytest.fixture(scope="module")
def new_process() -> Iterator[ProcessPoolExecutor]:
    """Return a process for all families, because imports take most of the time."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        yield executor


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_gives_up_30_percent_and_is_reloaded(name: str, tmp_path: Path, new_process: Any) -> None:
    model, inputs = family(name)
    example = as_inputs(inputs).select(torch.tensor([0]))
    dense = count_macs(model, example)
    plan = plan_width(model, Budget(macs=0.3), batches=[inputs], loss=squares)
    apply_plan(model, plan)
    assert plan.result.macs == count_macs(model, example)
    assert 0.3 <= 1 - plan.result.macs / dense < 0.31
    squares(model, inputs).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)
    with torch.no_grad():
        given = outputs(model, inputs)
    assert all(tensor.isfinite().all() for tensor in given)
    save_pruned(model, plan, tmp_path / "pruned")
    again = new_process.submit(reloaded, name, tmp_path / "pruned").result()
    shutil.rmtree(tmp_path)
    assert len(again) == len(given)
    assert all(np.array_equal(one, other.numpy()) for one, other in zip(again, given, strict=True))


IDS = torch.randint(2, 60, (4, 9), generator=torch.Generator().manual_seed(0))
BATCHES = [{"input_ids": IDS, "labels": torch.arange(4) % 3}]
TEXT_SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "num_labels": 3,
}


def classifier(family: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**TEXT_SIZES, **settings)
    return getattr(transformers, f"{family}ForSequenceClassification")(config).eval()


def test_heads_of_mpnet_go_with_their_column_of_position_biases() -> None:
    """All layers share a table, whose module counts heads of no attention."""
    model, masked = classifier("MPNet"), classifier("MPNet")
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
    """No module has the values of a single head: a gate multiplies all heads."""
    model = classifier("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8)
    plan = plan_width(model, Budget(macs=0.4), batches=BATCHES, importance=importance, replace="zero")
    assert any("value_proj" in edit.unit for edit in plan.edits)
    apply_plan(model, plan)
    assert model(IDS).logits.isfinite().all()
