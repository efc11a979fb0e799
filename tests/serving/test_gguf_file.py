"""A GGUF file of an uneven decoder computes the network's outputs, by the arithmetic of llama.cpp."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.serving.uneven import TOKENS, UNEVEN, byte_tokenizer, character_tokenizer, narrow, tokens, uneven
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

from prunerecover import export
from prunerecover.model.replacements import Affine, Zeros
from prunerecover.refusal import Refusal

gguf = pytest.importorskip("gguf")


def opened(path: Path) -> Any:
    from cases.serving.deci import DeciFile

    return DeciFile(path)


def logits(model: nn.Module, given: Tensor) -> Tensor:
    with torch.no_grad():
        return model(input_ids=given).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", UNEVEN)
def test_the_file_computes_what_the_network_does(name: str, tmp_path: Path) -> None:
    model, given = uneven(name), tokens()
    file = opened(export(model, tmp_path / "model.gguf", format="gguf-f32", tokenizer=byte_tokenizer()))
    torch.testing.assert_close(file.logits(given), logits(model, given), atol=1e-4, rtol=1e-4)
    assert file.used == file.tensors.keys()


def test_a_layer_states_its_own_widths(tmp_path: Path) -> None:
    file = opened(export(uneven("widths"), tmp_path / "model.gguf", tokenizer=byte_tokenizer()))
    assert [file.layer(i) for i in range(4)] == [(4, 4, 1), (2, 1, 17), (3, 3, 64), (4, 2, 48)]
    assert (file.entry("context_length"), file.entry("vocab_size")) == (64, TOKENS)


def test_replacements_state_what_they_are(tmp_path: Path) -> None:
    """Constants are biases, maps are layers with heads but no keys, empty blocks are no layers."""
    model = uneven("maps")
    file = opened(export(model, tmp_path / "model.gguf", format="gguf-f32", tokenizer=byte_tokenizer()))
    first, _, _, _ = model.model.layers
    assert [file.layer(i)[:2] for i in range(file.entry("block_count"))] == [(1, 1), (1, 0), (1, 0), (1, 0)]
    torch.testing.assert_close(file.tensors["blk.0.ffn_down.bias"], first.self_attn.bias.detach())
    torch.testing.assert_close(file.tensors["blk.1.attn_output.weight"], first.mlp.weight.detach())


def test_matrices_have_the_type_of_the_format(tmp_path: Path) -> None:
    """A value in Q8_0 is within half a step of 1/127 of the largest; vectors are never rounded."""
    model = uneven("widths")
    down, head = model.model.layers[1].mlp.down_proj.weight.detach(), model.lm_head.weight.detach()
    half, eight = (
        opened(export(model, tmp_path / f"{name}.gguf", format=name, tokenizer=byte_tokenizer()))
        for name in ("gguf", "gguf-q8_0")
    )
    assert torch.equal(half.tensors["output.weight"], head.half().float())
    assert (eight.tensors["output.weight"] - head).abs().max() < head.abs().max() / 127 * 0.51
    assert torch.equal(eight.tensors["blk.1.ffn_down.weight"], down.half().float())  # 17 is no multiple of 32
    assert eight.kinds["output.weight"] == "Q8_0"
    vectors = {kind for file in (half, eight) for name, kind in file.kinds.items() if "norm" in name or "bias" in name}
    assert vectors == {"F32"}


def test_a_network_in_half_precision_is_written_as_it_is(tmp_path: Path) -> None:
    model = uneven("widths").half()
    file = opened(export(model, tmp_path / "model.gguf", tokenizer=byte_tokenizer()))
    assert torch.equal(file.tensors["output.weight"], model.lm_head.weight.detach().float())


def test_the_network_is_not_changed_and_a_refused_file_not_left(tmp_path: Path) -> None:
    model = uneven("maps").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    export(model, tmp_path / "model.gguf", tokenizer=byte_tokenizer())
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.lm_head.weight.data[0, 0] = 1e5
    with pytest.raises(Refusal, match="weights that F16 holds.*'output.weight' has values up to 1e\\+05. Write format"):
        export(model, tmp_path / "other.gguf", tokenizer=byte_tokenizer())
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_a_vocabulary_stands_in_the_file(tmp_path: Path) -> None:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{{ messages }}"
    file = opened(export(uneven("dense"), tmp_path / "model.gguf", tokenizer=tokenizer))
    told = {key: file.of(f"tokenizer.{key}") for key in ("ggml.model", "ggml.bos_token_id", "chat_template")}
    assert told == {"ggml.model": "llama", "ggml.bos_token_id": 1, "chat_template": "{{ messages }}"}
    assert file.of("tokenizer.ggml.tokens")[: len(tokenizer)] == [
        tokenizer.convert_ids_to_tokens(i) for i in range(len(tokenizer))
    ]
    assert len(file.of("tokenizer.ggml.scores")) == TOKENS


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("mlp.act_fn", nn.GELU(), "activation silu, but 'model.layers.1.mlp.act_fn' is GELU. Serve it with transf"),
        ("mlp", Zeros(), "zero, constant or affine, but 'model.layers.1.mlp' is Zeros. Serve"),
        ("mlp.up_proj", nn.Sequential(), "ordinary linears, but 'model.layers.1.mlp.up_proj' is Sequential. Call me"),
        ("self_attn.head_dim", 4, r"heads of one size in all layers, but their sizes are \[4, 8\]. Serve"),
        ("input_layernorm.variance_epsilon", 1.0, r"one variance_epsilon, but they have \[1e-06, 1.0\]. Serve"),
        ("self_attn.sliding_window", 8, "context, but some look back 8 of 64 tokens. If no text will be longer, set c"),
    ],
)
def test_what_the_format_cannot_say_of_a_layer_is_refused(path: str, value: Any, told: str, tmp_path: Path) -> None:
    model = uneven("dense")
    *parents, name = path.split(".")
    setattr(model.model.layers[1].get_submodule(".".join(parents)), name, value)
    with pytest.raises(Refusal, match=told):
        export(model, tmp_path / "model.gguf", tokenizer=byte_tokenizer())
    assert not list(tmp_path.iterdir())


def refused_model(name: str) -> Any:
    model = uneven("dense")
    match name:
        case "groups":
            narrow(model.model.layers[1], 3, 2, 48)
        case "positions":
            model.config.rope_parameters["rope_type"] = "dynamic"
        case "head bias":
            model.lm_head = nn.Linear(32, TOKENS)
        case "hook":
            model.model.layers[1].mlp.register_forward_hook(lambda *_: torch.zeros(()))
        case "adapter":
            return inject_adapter_in_model(LoraConfig(target_modules=["up_proj"]), model)
        case "no decoder":
            return Affine(3)
    return model


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("groups", "query heads for each head of keys, but 'model.layers.1.self_attn' has 3 and 2. Remove"),
        ("positions", "texts of any length, but rope_type of the config is 'dynamic'. Serve"),
        ("head bias", "without a bias, but 'lm_head' has one. Serve"),
        ("hook", "equal to its parts.* its logits differ from those of the parts by .* of the largest. Was forward"),
        ("adapter", "merged into the weights, but 'model.layers.0.mlp.up_proj' still holds"),
        ("no decoder", "decoder with its head, LlamaFor.* but got Affine. Pass the language model"),
    ],
)
def test_what_the_format_cannot_say_of_a_network_is_refused(name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=told):
        export(refused_model(name), tmp_path / "model.gguf", tokenizer=byte_tokenizer())
    assert not list(tmp_path.iterdir())


def test_the_package_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModuleNotFoundError, match=r'the package gguf, but .*pip install "prunerecover\[serving\]"'):
        export(uneven("dense"), tmp_path / "model.gguf", tokenizer=byte_tokenizer())


def test_the_tokenizer_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected tokenizer for model.gguf, but got None. Pass the language model's"):
        export(uneven("dense"), tmp_path / "model.gguf")
