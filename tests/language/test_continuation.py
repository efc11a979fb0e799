"""Exact continuation: greedy decoding with a cache, compared with the rest of the text."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cases.models.tiny import VOCABULARY, tiny_gpt2, tiny_llama, tiny_mistral
from torch import Tensor, nn

from prunerecover.language.continuation import exact_continuation

TOKENS = torch.randint(3, VOCABULARY, (3, 12), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def greedy(model: nn.Module, prompt: Tensor, count: int) -> Tensor:
    """The oracle: everything is computed again for each token."""
    ids = prompt
    for _ in range(count):
        ids = torch.cat([ids, model(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    return ids


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2, tiny_mistral])
def test_share_is_that_of_decoding_without_a_cache(make: Any) -> None:
    """Mistakes are not corrected, as by teacher forcing, and settings for sampling do not count."""
    model = make()
    text = greedy(model, TOKENS[:, :5], 7)
    model.generation_config.update(do_sample=True, temperature=9.0, repetition_penalty=3.0, num_beams=2, max_length=6)
    kept = copy.deepcopy(model.generation_config)
    text[0, 8], text[1, 6] = (text[0, 8] + 1) % VOCABULARY, (text[1, 6] + 1) % VOCABULARY  # two are other words
    assert exact_continuation(model, text, prompt=5) == pytest.approx(19 / 21)
    expected = (greedy(model, TOKENS[:, :4], 8)[:, 4:] == TOKENS[:, 4:]).float().mean()
    assert exact_continuation(model, TOKENS, prompt=4) == pytest.approx(expected.item())
    assert model.generation_config == kept


def test_rows_are_decoded_a_few_at_a_time() -> None:
    model = tiny_llama().train()
    calls: list[int] = []
    model.register_forward_pre_hook(lambda _, args, kwargs: calls.append(len(kwargs["input_ids"])), with_kwargs=True)
    whole = exact_continuation(model, TOKENS, prompt=4)
    assert exact_continuation(model, TOKENS, prompt=4, batch_size=2) == whole
    assert calls == [3] * 8 + [2] * 8 + [1] * 8
    assert model.training


def test_what_cannot_be_continued_is_refused() -> None:
    for prompt in (0, 12):
        with pytest.raises(ValueError, match=f"Expected a prompt of 1 to 11 of the 12 tokens, but got {prompt}"):
            exact_continuation(tiny_llama(), TOKENS, prompt=prompt)
    with pytest.raises(ValueError, match=r"Expected tokens \(N, T\) of one sequence or more, but got \(12,\)"):
        exact_continuation(tiny_llama(), TOKENS[0], prompt=4)


def test_a_model_without_a_cache_is_refused() -> None:
    model = tiny_llama()
    model.register_forward_hook(lambda _, args, output: {"logits": output.logits})
    with pytest.raises(TypeError, match="Expected a model that returns its cache of keys and values, but LlamaFor"):
        exact_continuation(model, TOKENS, prompt=4)
