"""How many layers, attentions and blocks are found in networks whose numbers are known, with weights and without."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
import torch
from cases.depth.removal import removals_of
from cases.sampling import first

from prunerecover import find_units

YOLO = {"m": (79, 72), "l": (101, 94), "x": (123, 116)}
LLAMA_2 = {
    "7B": ({"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}, 32),
    "13B": ({"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40}, 40),
}


def count(units: Any, kind: str) -> int:
    return sum(unit.kind == kind for unit in units)


@pytest.mark.slow
@pytest.mark.parametrize(("include_strided", "layers"), [(False, 46), (True, 53)])
def test_resnet50_has_as_many_layers_as_convolutions(include_strided: bool, layers: int) -> None:
    import torchvision

    model = torchvision.models.resnet50()
    found = find_units(model, torch.rand(1, 3, 32, 32), ("layer",), include_strided=include_strided)
    assert len(found) == layers
    assert not any(unit.name == "fc" for unit in found)


@pytest.mark.slow
@pytest.mark.parametrize("size", LLAMA_2)
def test_llama_2_is_listed_without_weights_in_seconds(size: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    settings, depth = LLAMA_2[size]
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**settings, vocab_size=32000))
        tokens = torch.zeros((1, 4), dtype=torch.long)
    start = time.process_time()
    units = find_units(model, {"input_ids": tokens}, ("attention", "layer"))
    assert time.process_time() - start < 5
    assert (count(units, "layer"), count(units, "attention")) == (3 * depth, depth)


def test_models_that_bring_inputs_need_no_example() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    settings, depth = LLAMA_2["7B"][0] | {"num_hidden_layers": 3}, 3
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**settings, vocab_size=32000))
    units = find_units(model, kinds=("attention", "layer"))
    assert (count(units, "layer"), count(units, "attention")) == (3 * depth, depth)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "strided"), first(2, itertools.product(YOLO, (True, False))))
def test_yolov5_has_the_published_numbers_of_layers(size: str, strided: bool) -> None:
    ultralytics = pytest.importorskip("ultralytics")
    model = ultralytics.YOLO(f"yolov5{size}.yaml").model
    units = removals_of(model, torch.rand(1, 3, 64, 64), ("layer",), include_strided=strided).units
    with_strided, without = YOLO[size]
    assert len(units) == (with_strided if strided else without)
