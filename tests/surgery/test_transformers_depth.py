"""After surgery the config matches the model: a standard model on reloading, and cached generation works."""

from __future__ import annotations

import copy
import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.cached import assert_cache_is_exact, keep_blocks, numbers, remove_attentions, uncached
from cases.models.decoders import OTHERS
from cases.models.tiny import (
    BUILD,
    DECODERS,
    SHAPE,
    TEXT,
    TRANSFORMERS,
    alternating,
    stir,
    tiny_gpt2,
    tiny_inputs,
    tiny_llama,
    tiny_qwen2,
)
from cases.sampling import one_in
from torch import nn

from prunerecover import apply_plan
from prunerecover.model.hashing import tensors_hash
from prunerecover.surgery.merging import block_removals
from prunerecover.surgery.provenance import plan_for
from prunerecover.surgery.transformers_depth import apply_config, config_edits, renumber


@pytest.mark.parametrize("name", one_in(4, TRANSFORMERS))
def test_fewer_blocks_save_and_reload_as_a_standard_model(name: str, tmp_path: Path) -> None:
    model = BUILD[name]()
    keep_blocks(model, 0, 2, 3)
    assert model.config.num_hidden_layers == 3
    model.save_pretrained(tmp_path)
    reloaded = type(model).from_pretrained(tmp_path).eval()
    assert numbers(reloaded) == numbers(model)
    assert numbers(model) in ([0, 1, 2], [])
    with torch.no_grad():
        assert torch.equal(reloaded(**tiny_inputs(name)).logits, model(**tiny_inputs(name)).logits)
    if name in DECODERS:
        assert_cache_is_exact(model)


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_blocks_and_attentions_removed_in_turns(name: str) -> None:
    model = BUILD[name]()
    keep_blocks(model, 0, 1, 3)
    remove_attentions(model, 1)
    renumber(model)
    assert_cache_is_exact(model)
    keep_blocks(model, 0, 2)
    assert numbers(model) == [0, 1]
    assert_cache_is_exact(model)


def test_lists_that_only_happen_to_have_the_models_length_stay() -> None:
    model = tiny_llama(eos_token_id=[2, 3, 4, 5])
    assert config_edits(model, (0, 1)) == {"num_hidden_layers": 2}


def test_config_inside_a_larger_config(tmp_path: Path) -> None:
    model = tiny_llava()
    keep_blocks(model, 0, 3)
    assert model.config.text_config.num_hidden_layers == 2
    assert model.config.vision_config.num_hidden_layers == 1
    with torch.no_grad():
        ids = tiny_inputs("text")["input_ids"]
        model.save_pretrained(tmp_path)
        reloaded = type(model).from_pretrained(tmp_path).eval()
        assert torch.equal(uncached(reloaded, ids), uncached(model, ids))


def test_parts_with_their_own_copy_of_the_config_agree() -> None:
    model = tiny_qwen2()
    model.config = copy.deepcopy(model.config)
    keep_blocks(model, 1, 2, 3)
    for holder in (model, model.model, model.model.layers[0].self_attn):
        assert (holder.config.num_hidden_layers, holder.config.layer_types) == (3, alternating()[1:])


def tiny_llava() -> nn.Module:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(**{**SHAPE, "num_hidden_layers": 1}, image_size=16, patch_size=8, projection_dim=8)
    config = LlavaConfig(vision_config=vision, text_config=LlamaConfig(**TEXT), image_token_index=60)
    return stir(LlavaForConditionalGeneration(config))


@pytest.mark.parametrize("kept", [(), (0, 4), (1, 1), (-1, 0)], ids=str)
def test_kept_must_be_increasing_indices(kept: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one kept block, as increasing indices from 0 to 3, but got"):
        config_edits(tiny_llama(), kept)


def test_unknown_config_attribute_changes_nothing() -> None:
    model = tiny_llama()
    with pytest.raises(ValueError, match="config with depth_of_field, but the LlamaConfig of this transformers Llama"):
        apply_config(model, {"num_hidden_layers": 1, "depth_of_field": 3})
    assert model.config.num_hidden_layers == 4


@pytest.mark.parametrize("make", [tiny_llama, OTHERS["gptj"].build], ids=["llama", "gptj"])
def test_edits_in_another_order_are_refused(make: Any) -> None:
    """The config comes before the blocks, as in a plan file edited by hand."""
    model = make()
    before = tensors_hash(model)
    edits = block_removals(model, [1, 2])
    plan = plan_for(model, edits, method="by hand").model_copy(update={"edits": (edits[-1], *edits[:-1])})
    with pytest.raises(ValueError, match="but it sets num_hidden_layers=2 where 4 blocks are left. Were its edits put"):
        apply_plan(model, plan)
    assert tensors_hash(model) == before


def test_renumber_before_the_config_is_a_mistake() -> None:
    model = tiny_qwen2()
    del model.model.layers[1]
    with pytest.raises(RuntimeError, match="layer_types per block, but got 4 for 3 blocks. Apply the edits"):
        renumber(model)


def test_layers_with_configs_of_their_own() -> None:
    model = tiny_llama()
    if not hasattr(model.config, "is_heterogeneous"):
        pytest.skip("this transformers has one config for all layers")
    model.config.per_layer_config = {1: {"intermediate_size": 24}}
    with pytest.raises(ValueError, match="do not depend on their number.*is_heterogeneous = True"):
        config_edits(model, (0, 1))


@pytest.mark.parametrize(("name", "removed"), zip(DECODERS, itertools.cycle([(0,), (2,), (0, 1), (1, 3)])))
def test_cached_generation_without_some_attentions(name: str, removed: tuple[int, ...]) -> None:
    model = BUILD[name]()
    remove_attentions(model, *removed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        renumber(model)
    assert_cache_is_exact(model)


def test_slots_follow_the_layer_types() -> None:
    """In a hybrid the third layer's full attention may not move to the window's slot."""
    model = tiny_qwen2(num_hidden_layers=6, layer_types=alternating(6))
    remove_attentions(model, 0, 3)
    renumber(model)
    assert numbers(model) == [1, 0, 2, 3]
    assert_cache_is_exact(model)


def test_warns_when_the_first_slot_stays_empty() -> None:
    model = tiny_qwen2()
    remove_attentions(model, 0, 2)
    with pytest.warns(UserWarning, match=r"No 'self_attn' that is left can use cache slot 0.*use_cache=False"):
        renumber(model)


def test_cross_attention_is_numbered_apart() -> None:
    model = tiny_gpt2(add_cross_attention=True)
    remove_attentions(model, 0, 2)
    renumber(model)
    blocks = model.transformer.h
    assert [block.crossattention.layer_idx for block in blocks] == [0, 1, 2, 3]
    assert [blocks[i].attn.layer_idx for i in (1, 3)] == [0, 1]


def test_gpt2_that_divides_by_the_layer_number() -> None:
    model = tiny_gpt2(scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ValueError, match="do not depend on their number.*scale_attn_by_inverse_layer_idx = True"):
        config_edits(model, (0, 2, 3))
    assert config_edits(model, (0, 1)) == {"num_hidden_layers": 2}
