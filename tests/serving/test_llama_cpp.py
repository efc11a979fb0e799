"""llama.cpp itself opens the files, and computes and generates the same as the networks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.serving.uneven import TOKENS, UNEVEN, byte_tokenizer, character_tokenizer, tokens, uneven
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from prunerecover import apply_plan, export, plan_depth

pytest.importorskip("gguf")
llama_cpp = pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.slow
FORCED = 10  # a token whose text is whole, so that the server tells the probabilities beside it
PROMPTS = [
    f"{begin} {rest}"
    for begin in ("Once upon a time", "One day", "Lily and Tom", "The big dog", "It was a sunny day and")
    for rest in ("there was a", "went to the park", "said", "wanted to play")
]


def server(path: Path) -> Any:
    """Open a file in llama.cpp, in full precision beside the weights."""
    how = llama_cpp.CommonParams()
    how.model.path, how.n_ctx, how.n_parallel, how.warmup, how.verbosity = str(path), 512, 1, False, 0
    how.cpuparams.n_threads = 1
    how.flash_attn_type = llama_cpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    how.cache_type_k = how.cache_type_v = llama_cpp.ggml_type.GGML_TYPE_F32
    return llama_cpp.Server(how)


def log_probabilities(opened: Any, ids: list[int], token: int) -> Tensor:
    """Return llama.cpp's logarithms of the probabilities of the next token, `(TOKENS,)`."""
    asked = {"prompt": ids, "max_tokens": 1, "logprobs": TOKENS, "logit_bias": [[token, 1e4]], "cache_prompt": False}
    answer = opened.handle_completions(asked)
    found = torch.full((TOKENS,), torch.nan)
    for entry in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
        found[entry["id"]] = entry["logprob"]
    return found


def error(opened: Any, model: Any, ids: list[int], token: int = FORCED) -> float:
    """Return the largest difference of all log probabilities, by the largest."""
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    return float((log_probabilities(opened, ids, token) - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("name", UNEVEN)
def test_logits_of_a_file_in_32_bits_are_the_networks(name: str, tmp_path: Path) -> None:
    model = uneven(name)
    opened = server(export(model, tmp_path / "model.gguf", format="gguf-f32", tokenizer=byte_tokenizer()))
    assert max(error(opened, model, ids.tolist()) for ids in tokens()) < 1e-5


@pytest.mark.parametrize(
    ("tokenizer", "text"), [(byte_tokenizer, "The a12 the 112 <tool>he\n"), (character_tokenizer, "the hat é ate.")]
)
def test_texts_become_the_same_tokens(tokenizer: Any, text: str, tmp_path: Path) -> None:
    made, model = tokenizer(), uneven("dense")
    opened = server(export(model, tmp_path / "model.gguf", format="gguf-f32", tokenizer=made))
    said = opened.handle_completions({"prompt": text, "max_tokens": 1})
    assert said["usage"]["prompt_tokens"] == len(made(text).input_ids)


@pytest.fixture(scope="module")
def stories(data_root: Path) -> tuple[Any, Any]:
    """Return stories260K with fitted replacements for an attention and an MLP, and the tokenizer."""
    folder = data_root / "models" / "stories260K"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    begin = torch.full((32, 1), tokenizer.bos_token_id)
    how = {"attention_mask": torch.ones_like(begin), "do_sample": True}
    with torch.random.fork_rng():
        torch.manual_seed(1)  # with 0, two tokens of a text are level in 16 bits
        texts = model.generate(begin, min_new_tokens=127, max_new_tokens=127, **how).split(8)
    apply_plan(model, plan_depth(model, remove={"attention": 1, "mlp": 1}, batches=texts))
    return model, tokenizer


@pytest.mark.data
def test_a_pruned_language_model_is_served_in_16_bits(stories: tuple[Any, Any], tmp_path: Path) -> None:
    """20 prompts: logits to 0.001 of the largest, the same tokens, and the greedy texts of the weights in 16 bits."""
    model, tokenizer = stories
    rounded = copy.deepcopy(model).half().float()
    opened = server(export(model, tmp_path / "model.gguf", tokenizer=tokenizer))
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        assert error(opened, model, ids[0].tolist(), 410) < 1e-3
        made = rounded.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :]
        said = opened.handle_completions({"prompt": prompt, "max_tokens": 24, "temperature": 0.0})
        assert said["usage"]["prompt_tokens"] == ids.shape[1]
        assert said["choices"][0]["text"] == tokenizer.decode([*ids[0], *made])[len(tokenizer.decode(ids[0])) :]


@pytest.mark.data
def test_eight_bits_are_close(stories: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = stories
    opened = server(export(model, tmp_path / "model.gguf", format="gguf-q8_0", tokenizer=tokenizer))
    assert max(error(opened, model, tokenizer(prompt).input_ids, 410) for prompt in PROMPTS) < 2e-2
