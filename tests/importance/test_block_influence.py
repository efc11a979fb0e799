"""How much a branch changes the residual stream is told by what is added, as the model adds it."""

from __future__ import annotations

import pytest
import torch
from cases.models.decoders import DECODERS
from cases.models.tiny import tiny_inputs

from prunerecover import find_units
from prunerecover.importance.context import DepthContext
from prunerecover.importance.turned_stream import block_influence
from prunerecover.model.hooks import recording


@pytest.mark.parametrize(
    ("name", "norm", "attention", "factor"),
    [
        ("granite", "input_layernorm", "self_attn", 0.3),
        ("phi", "input_layernorm", "self_attn", 1.0),
        ("olmo2", "self_attn", "post_attention_layernorm", 1.0),
    ],
)
@torch.no_grad()
def test_stream_before_and_after_an_attention(name: str, norm: str, attention: str, factor: float) -> None:
    model, inputs = DECODERS[name].build(), tiny_inputs("text")
    layer = model.get_submodule("model.layers.1")
    with recording({"first": layer.get_submodule(norm), "last": layer.get_submodule(attention)}) as seen:
        model(**inputs)
    before = seen["first.in"]
    cosine = torch.cosine_similarity(before, before + factor * seen["last.out"], dim=-1)
    units = find_units(model, kinds=("attention",))
    found = block_influence(DepthContext(model=model, units=units, batches=(inputs,)))
    assert found["model.layers.1.self_attn"] == pytest.approx(float(1 - cosine.mean()), abs=1e-5)
