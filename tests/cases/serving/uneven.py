"""Tiny Llamas with all differences between layers from pruning, and tokenizers for their 512 tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases.models.tiny import tiny_llama, tiny_mistral, tiny_qwen2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

from prunerecover.model.replacements import Affine, Constant, Nothing, PassThrough

TOKENS, WIDTH = 512, 32
Layers = Any
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
NO_WINDOWS = {"use_sliding_window": False, "sliding_window": None, "layer_types": None}


def narrow(layer: Any, heads: int, key_value_heads: int, neurons: int) -> None:
    """Give a layer random projections of other widths, with biases as after a refit."""
    attention, mlp, size = layer.self_attn, layer.mlp, layer.self_attn.head_dim
    bias = attention.q_proj.bias is not None
    for name, count in {"q_proj": heads, "k_proj": key_value_heads, "v_proj": key_value_heads}.items():
        setattr(attention, name, nn.Linear(WIDTH, count * size, bias=bias))
    attention.o_proj = nn.Linear(heads * size, WIDTH)
    attention.num_key_value_groups = heads // key_value_heads
    mlp.gate_proj, mlp.up_proj = nn.Linear(WIDTH, neurons, bias=False), nn.Linear(WIDTH, neurons, bias=False)
    mlp.down_proj = nn.Linear(neurons, WIDTH)


def widths(layers: Layers) -> None:
    narrow(layers[0], 4, 4, 1)
    narrow(layers[1], 2, 1, 17)
    narrow(layers[2], 3, 3, 64)


def no_first_attention(layers: Layers) -> None:
    layers[0].self_attn = Nothing(2)


def no_last_mlp(layers: Layers) -> None:
    layers[-1].mlp = Nothing()


def nothing(layers: Layers) -> None:
    for layer in layers:
        layer.self_attn, layer.mlp = Nothing(2), Nothing()


def constants(layers: Layers) -> None:
    layers[0].self_attn, layers[2].self_attn, layers[2].mlp = Constant(WIDTH, 2), Constant(WIDTH, 2), Constant(WIDTH)
    layers[3].self_attn, layers[3].mlp = Nothing(2), Constant(WIDTH)


def maps(layers: Layers) -> None:
    layers[0].self_attn, layers[0].mlp = Constant(WIDTH, 2), Affine(WIDTH)
    layers[1].self_attn, layers[1].mlp = Affine(WIDTH, 2), Nothing()
    layers[2].self_attn = PassThrough(2)
    layers[3].self_attn, layers[3].mlp = Nothing(2), Nothing()


def unchanged(_: Layers) -> None:
    pass


UNEVEN: dict[str, tuple[Callable[..., Any], Callable[[Layers], None], dict[str, Any]]] = {
    "dense": (tiny_llama, unchanged, {}),
    "widths": (tiny_llama, widths, {}),
    "no last mlp": (tiny_llama, no_last_mlp, {}),
    "nothing": (tiny_llama, nothing, {}),
    "constants": (tiny_llama, constants, {}),
    "maps": (tiny_llama, maps, {}),
    "biases": (tiny_llama, widths, {"attention_bias": True, "mlp_bias": True}),
    "tied": (tiny_llama, widths, {"tie_word_embeddings": True}),
    "llama3 positions": (tiny_llama, maps, {"rope_parameters": LLAMA3}),
    "linear positions": (
        tiny_llama,
        unchanged,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
    ),
    "mistral": (tiny_mistral, no_last_mlp, {"sliding_window": None}),
    "qwen2": (tiny_qwen2, no_first_attention, NO_WINDOWS),
}


def uneven(name: str) -> Any:
    """Return a network of `UNEVEN` with all parameters random, biases and norms included."""
    make, change, settings = UNEVEN[name]
    model = make(vocab_size=TOKENS, **settings)
    change(model.model.layers)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=draw)
            parameter.copy_(0.25 * drawn + float("norm" in path))
    return model.eval()


def tokens(samples: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(3, TOKENS, (samples, length), generator=torch.Generator().manual_seed(1))


def byte_tokenizer(*splits: Any, normal: bool = True) -> PreTrainedTokenizerFast:
    """Return a byte-pair encoding over bytes, with the given splits before the bytes (default: GPT-2's)."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("t", "he"), ("Ġ", "the"), ("1", "2"), ("Ġ", "a")]
    texts = ["<s>", "</s>", *letters, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(texts)}, merges, ignore_merges=not normal))
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=normal)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_]) if splits else bytes_  # type: ignore
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    made.add_tokens(["<tool>"])
    return made


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-pair encoding over characters, with bytes as fallback, that begins texts with `<s>`."""
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    merges = [("h", "e"), ("t", "he"), ("▁", "the"), ("▁", "a")]
    texts = [*special, *"▁ abcdefghijklmnopqrstuvwxyz.", *("".join(pair) for pair in merges)]
    vocabulary = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # type: ignore
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])  # type: ignore
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def split_by(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")
