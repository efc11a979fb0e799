"""Tiny seeded decoders of transformers, in several forms, for each family with a record of units.

Each decoder names the junctions of its branches with the residual stream, taken from the models' code and not from the
records: the module in a layer whose output is added to the stream unchanged (but for a factor).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from cases.models.tiny import SPECIAL, stir
from torch import nn

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
TEXT = {**SHAPE, **SPECIAL, "vocab_size": 64, "max_position_embeddings": 64, "num_key_value_heads": 2}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
WINDOWS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
MOSTLY_WINDOWS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]


@dataclass(frozen=True)
class Decoder:
    """A form of a family.

    Attributes:
        classes: Prefix of the class names.
        family: Name of the family.
        settings: Config entries, beside `TEXT`.
        attention: Path in a layer of the module whose output the attention adds.
        mlp: The same of the MLP.
        config: Name of the config's class, if it has another prefix.
    """

    classes: str
    family: str
    settings: dict[str, Any] = field(default_factory=dict)
    attention: str = "self_attn"
    mlp: str = "mlp"
    config: str = ""

    def build(self, **changes: Any) -> nn.Module:
        """The model, in evaluation mode, always of the same weights."""
        import transformers

        config = getattr(transformers, self.config or f"{self.classes}Config")
        torch.manual_seed(0)
        model = getattr(transformers, f"{self.classes}ForCausalLM")(config(**{**TEXT, **self.settings, **changes}))
        return stir(model, scale=6.0)


NORMS_AFTER = {"attention": "post_attention_layernorm", "mlp": "post_feedforward_layernorm"}
DROPOUTS = {"attention": "post_attention_dropout", "mlp": "post_mlp_dropout"}
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8}
DECODERS = {
    "gemma": Decoder("Gemma", "Gemma", {"head_dim": 8}),
    "gemma2": Decoder(
        "Gemma2", "Gemma 2", {**GEMMA, "sliding_window": 4, "final_logit_softcapping": 3.0}, **NORMS_AFTER
    ),
    "gemma3": Decoder(
        "Gemma3",
        "Gemma 3",
        {**GEMMA, "sliding_window": 4, "layer_types": MOSTLY_WINDOWS},
        **NORMS_AFTER,
        config="Gemma3TextConfig",
    ),
    "phi3": Decoder("Phi3", "Phi-3"),
    "phi3_window": Decoder("Phi3", "Phi-3", {"sliding_window": 4}),
    "gpt_neox": Decoder(
        "GPTNeoX", "GPT-NeoX", {"use_parallel_residual": True}, **DROPOUTS | {"attention": "attention"}
    ),
    "gpt_neox_in_turn": Decoder("GPTNeoX", "GPT-NeoX", {"use_parallel_residual": False}, **DROPOUTS),
    "smollm3": Decoder("SmolLM3", "SmolLM3", {"no_rope_layers": [1, 0, 1, 1]}),
    "smollm3_window": Decoder(
        "SmolLM3", "SmolLM3", {"no_rope_layers": [1, 0, 1, 0], "use_sliding_window": True, "sliding_window": 4}
    ),
    "olmo": Decoder("Olmo", "OLMo"),
    "olmo2": Decoder("Olmo2", "OLMo 2", **NORMS_AFTER),
    "olmo3": Decoder("Olmo3", "OLMo 3", {"sliding_window": 4, "layer_types": WINDOWS}, **NORMS_AFTER),
    "granite": Decoder("Granite", "Granite", {"residual_multiplier": 0.3, "embedding_multiplier": 2.0}),
    "starcoder2": Decoder("Starcoder2", "Starcoder2", {"sliding_window": 4}),
    "mixtral": Decoder("Mixtral", "Mixtral", {**EXPERTS, "num_local_experts": 4, "sliding_window": 4}),
    "qwen2_moe": Decoder(
        "Qwen2Moe",
        "Qwen2-MoE",
        {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 24, "decoder_sparse_step": 2}
        | {"use_sliding_window": True, "sliding_window": 4, "layer_types": WINDOWS},
    ),
    "qwen3_moe": Decoder(
        "Qwen3Moe", "Qwen3-MoE", {**EXPERTS, "num_experts": 4, "head_dim": 8, "mlp_only_layers": [0, 2]}
    ),
    "gpt_oss": Decoder(
        "GptOss",
        "gpt-oss",
        {**EXPERTS, "num_local_experts": 4, "head_dim": 8, "sliding_window": 4}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
    ),
    "phi": Decoder("Phi", "Phi"),
    "cohere": Decoder("Cohere", "Cohere", {"logit_scale": 1.0}),
    "cohere2": Decoder("Cohere2", "Cohere2", {"logit_scale": 1.0, "sliding_window": 4, "layer_types": MOSTLY_WINDOWS}),
    "stablelm": Decoder("StableLm", "StableLM", {"use_parallel_residual": False}),
    "stablelm_parallel": Decoder("StableLm", "StableLM", {"use_parallel_residual": True}),
}

# Families without a record, known by the computation graph alone: layers are found by the length that the config says.
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
GPT = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64}
OTHERS = {
    "deepseek_v3": Decoder(
        "DeepseekV3",
        "",
        {**EXPERTS, **LATENT, "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1}
        | {"first_k_dense_replace": 2, "n_group": 1, "topk_group": 1},
    ),
    "gptj": Decoder("GPTJ", "", {**GPT, "rotary_dim": 4}),
    "gpt_bigcode": Decoder("GPTBigCode", "", GPT),
    "helium": Decoder("Helium", "", {"head_dim": 8}),
    "exaone4": Decoder("Exaone4", "", {"sliding_window": 4, "layer_types": WINDOWS}),
    "llama4": Decoder(
        "Llama4",
        "",
        {"intermediate_size_mlp": 48, "num_local_experts": 2, "head_dim": 8, "moe_layers": [1, 3]}
        | {"no_rope_layers": [1, 0, 1, 1]},
        config="Llama4TextConfig",
    ),
}


def tiny_diff_llama() -> nn.Module:
    """Return a decoder with attentions that use the layer's number."""
    return Decoder("DiffLlama", "").build()


def tiny_minimax() -> nn.Module:
    """Return a decoder with some linear attentions, and their states in a list filled as layers run."""
    return Decoder("MiniMax", "", {**EXPERTS, "num_local_experts": 2, "head_dim": 8, "num_hidden_layers": 5}).build()
