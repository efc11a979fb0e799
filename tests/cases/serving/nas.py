"""Servers' computation on a Nemotron-NAS folder: Llama's own attentions and MLPs, built by the entry of each layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding


def neurons(entry: Any, width: int) -> int:
    """Return the width of an MLP, as computed by vLLM, TensorRT-LLM and llama.cpp's converter."""
    size = int(2 * round(entry.ffn_mult, 6) * width / 3)
    return -(-size // 256) * 256


class NasNetwork(nn.Module):
    """Opened folder, checked so that every weight has a place, and every place a weight."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=True)
        told = self.config.to_dict()
        own = {name: told[name] for name in vars(LlamaConfig()) if name in told}
        self.plain: Any = LlamaConfig(**own | {"rope_parameters": told["rope_parameters"]}, attn_implementation="eager")
        width, count = self.config.hidden_size, self.config.vocab_size
        layers = [self.built(i, block) for i, block in enumerate(self.config.block_configs)]
        self.model = nn.ModuleDict(
            {"embed_tokens": nn.Embedding(count, width), "layers": nn.ModuleList(layers), "norm": self.rms()}
        )
        self.lm_head = nn.Linear(width, count, bias=False)
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model["embed_tokens"].weight
        self.rotary = LlamaRotaryEmbedding(self.plain)
        weights = load_file(folder / "model.safetensors")
        if self.config.tie_word_embeddings:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        self.load_state_dict(weights)

    def rms(self) -> nn.Module:
        return LlamaRMSNorm(self.config.hidden_size, self.config.rms_norm_eps)

    def built(self, i: int, block: Any) -> nn.ModuleDict:
        made: dict[str, nn.Module] = {}
        own = LlamaConfig(**self.plain.to_dict(), attn_implementation="eager")
        if not block.attention.no_op:
            own.num_key_value_heads = own.num_attention_heads // block.attention.n_heads_in_group
            made |= {"input_layernorm": self.rms(), "self_attn": LlamaAttention(own, i)}
        if not block.ffn.no_op:
            own.intermediate_size = neurons(block.ffn, own.hidden_size)
            made |= {"post_attention_layernorm": self.rms(), "mlp": LlamaMLP(own)}
        return nn.ModuleDict(made)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        hidden = self.model["embed_tokens"](tokens)
        positions = self.rotary(hidden, torch.arange(length)[None])
        mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
        for layer in self.model["layers"]:
            if "self_attn" in layer:
                normed = layer["input_layernorm"](hidden)
                hidden = hidden + layer["self_attn"](normed, position_embeddings=positions, attention_mask=mask)[0]
            if "mlp" in layer:
                hidden = hidden + layer["mlp"](layer["post_attention_layernorm"](hidden))
        return self.lm_head(self.model["norm"](hidden))
