"""Memory in service, checkpoint bytes and active parameters against counts by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_llama, tiny_mistral, tiny_mixture
from cases.planning.networks import vit
from safetensors.torch import save_file
from torch import nn

from prunerecover.cost.active_parameters import active_parameters
from prunerecover.cost.checkpoint_size import checkpoint_bytes
from prunerecover.cost.counted import COUNTED
from prunerecover.cost.served_memory import cache_bytes, served_memory
from prunerecover.cost.units.cost_names import COSTS
from prunerecover.cost.units.serving import Serving
from prunerecover.model.batches import ModelInputs, as_inputs

LOAD = Serving(batch=8, tokens=4096)


def tokens(count: int = 6) -> ModelInputs:
    return as_inputs({"input_ids": torch.arange(count)[None]})


def weight_bytes(model: nn.Module) -> int:
    return sum({id(t): t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers())}.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_of_a_llama_is_its_weights_and_a_key_and_a_value_for_every_token(dtype: torch.dtype) -> None:
    model: Any = tiny_llama().to(dtype)
    config = model.config
    heads, size = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    cache = 2 * config.num_hidden_layers * heads * size * 8 * 4096 * dtype.itemsize
    assert served_memory(model, tokens(), LOAD) == weight_bytes(model) + cache
    assert cache_bytes(model, tokens(3), LOAD) == cache, "whatever the length of the example is"


@pytest.mark.parametrize("example", [3, 9])
def test_a_window_keeps_no_more_tokens(example: int) -> None:
    """The present token comes on top of the kept ones."""
    model: Any = tiny_mistral()  # a window of 5
    config = model.config
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    assert cache_bytes(model, tokens(example), LOAD) == 8 * token * 4
    assert cache_bytes(model, tokens(example), Serving(8, 2)) == 8 * token * 2


def test_a_network_without_a_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="key-value cache .*, but VisionTransformer fills none. Say params or checkp"):
        served_memory(vit(depth=1), as_inputs(torch.zeros(1, 3, 16, 16)), LOAD)


@pytest.mark.parametrize("make", [vit, tiny_llama, lambda: tiny_llama(tie_word_embeddings=True)])
def test_a_weights_file_holds_as_many_bytes(make: Any, tmp_path: Path) -> None:
    model, kept = make(), {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not any(tensor is other for other in kept.values()):
            kept[name] = tensor
    save_file({name: tensor.detach().clone() for name, tensor in kept.items()}, tmp_path / "weights.safetensors")
    file = (tmp_path / "weights.safetensors").read_bytes()
    header = 8 + int.from_bytes(file[:8], "little")
    assert checkpoint_bytes(model) == len(file) - header


def test_a_token_visits_the_experts_that_are_picked() -> None:
    """By the sizes of a Mixtral: three matrices per expert, and all other parameters."""
    model: Any = tiny_mixture("mixtral")
    config = model.config
    expert = 3 * config.hidden_size * config.intermediate_size
    experts = config.num_hidden_layers * config.num_local_experts * expert
    every = sum(p.numel() for p in model.parameters())
    picked = config.num_hidden_layers * config.num_experts_per_tok * expert
    assert active_parameters(model) == every - experts + picked < every


def test_without_experts_every_parameter_is_active() -> None:
    for model in (vit(), tiny_llama()):
        assert active_parameters(model) == sum(p.numel() for p in model.parameters())


def test_every_cost_but_the_measured_one_is_counted() -> None:
    assert set(COUNTED) | {"latency"} == set(COSTS)


def test_memory_without_a_load_says_what_to_give() -> None:
    with pytest.raises(ValueError, match=r"Expected a batch and a number of tokens .* Budget\(memory=0.3, batch=8"):
        COUNTED["memory"].count(tiny_llama(), tokens(), Serving())
