"""After surgery a transformers model generates with its cache as without."""

from __future__ import annotations

import itertools
import warnings

import pytest
from cases.models.cached import assert_cache_is_exact, cached, numbers, remove_attentions, uncached
from cases.models.tiny import (
    BUILD,
    DECODERS,
    alternating,
    tiny_gpt2,
    tiny_inputs,
    tiny_qwen2,
)
from cases.sampling import one_in

from prunerecover.surgery.transformers_depth import config_edits, renumber


@pytest.mark.parametrize(("name", "removed"), one_in(5, itertools.product(DECODERS, [(0,), (2,), (0, 1), (1, 3)])))
def test_cached_generation_without_some_attentions(name: str, removed: tuple[int, ...]) -> None:
    model = BUILD[name]()
    remove_attentions(model, *removed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        renumber(model)
    assert_cache_is_exact(model)


@pytest.mark.parametrize("name", DECODERS)
def test_without_renumbering_the_cache_is_wrong(name: str) -> None:
    """The reason for all this: the model believes that nothing has been read yet."""
    model = BUILD[name]()
    remove_attentions(model, 0)
    ids = tiny_inputs("text", length=14)["input_ids"]
    assert (cached(model, ids) - uncached(model, ids)).abs().max() > 0.1


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


def test_attention_that_computes_with_its_number_keeps_it() -> None:
    """GPT-2 of older transformers divides by the number in each call; there is no fixed `scaling` then."""
    model = tiny_gpt2(scale_attn_by_inverse_layer_idx=True)
    for block in model.transformer.h:
        vars(block.attn).pop("scaling", None)
    remove_attentions(model, 0)
    with pytest.warns(UserWarning, match="No 'attn' that is left"):
        renumber(model)
    assert numbers(model) == [1, 2, 3]


def test_gpt2_with_a_fixed_scale_moves_freely() -> None:
    model = tiny_gpt2(scale_attn_by_inverse_layer_idx=True)
    if not hasattr(model.transformer.h[0].attn, "scaling"):
        pytest.skip("this transformers divides by the number in each call")
    remove_attentions(model, 0)
    renumber(model)
    assert_cache_is_exact(model)
