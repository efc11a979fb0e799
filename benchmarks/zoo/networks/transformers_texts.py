"""Text networks of transformers with more than attention: state spaces, linear attention, sparse attention.

Beside them are encoder-decoders, and encoders with convolutions, hashes or random blocks for attention.
"""

from __future__ import annotations

from typing import Any

from torch import Generator, Tensor

from benchmarks.zoo.networks.network import CLASSES, Network, squares
from benchmarks.zoo.networks.transformers_inputs import (
    BOTH,
    SPECIAL,
    TEXT,
    VOCABULARY,
    class_labels,
    masked,
    model_of,
    tokens,
    translated,
)

GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 16}
ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16}
LINEAR |= {"linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"]}
NEXT = {**GROUPED, **LINEAR}
SHARED = {"shared_expert_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
NESTED = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCABULARY, "sliding_window": 8}
NESTED |= {"layer_types": ["sliding_attention", "full_attention"]}
STATES = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}
DECODERS: dict[str, dict[str, Any]] = {
    "Qwen3NextForCausalLM": {**NEXT, **SHARED, "moe_intermediate_size": 32},
    "Qwen3_5ForCausalLM": NEXT,
    "Qwen3_5MoeForCausalLM": {**NEXT, **SHARED, "moe_intermediate_size": 32},
    "Gemma3nForCausalLM": {
        **{**GROUPED, **NESTED, "num_kv_shared_layers": 0, "laurel_rank": 8, "altup_num_inputs": 2},
        **{"activation_sparsity_pattern": [0.0, 0.0], "intermediate_size": [128, 128]},
    },
    "Gemma4ForCausalLM": {**GROUPED, **NESTED, "num_kv_shared_layers": 0, "global_head_dim": 16},
    "Llama4ForCausalLM": {
        **{**GROUPED, "intermediate_size_mlp": 128, "num_local_experts": 4, "num_experts_per_tok": 1},
        **{"moe_layers": [1], "interleave_moe_layer_step": 2, "attention_chunk_size": 8},
    },
    "Lfm2ForCausalLM": {**TEXT, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]},
    "Lfm2MoeForCausalLM": {
        **{**TEXT, **ROUTED, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]},
        **{"num_dense_layers": 1},
    },
    "JambaForCausalLM": {
        **{**TEXT, **STATES, "num_key_value_heads": 2, "attn_layer_offset": 1, "attn_layer_period": 2},
        **{"expert_layer_offset": 1, "expert_layer_period": 2, "num_experts": 4, "num_experts_per_tok": 2},
        **{"mamba_dt_rank": 4},
    },
    "Zamba2ForCausalLM": {
        **{**TEXT, "num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"]},
        **{"mamba_d_state": 8, "mamba_ngroups": 1, "n_mamba_heads": 8, "use_mem_rope": False, "adapter_rank": 8},
        **{"num_key_value_heads": 4, "hybrid_layer_ids": [1]},
    },
    "ZambaForCausalLM": {
        **{**TEXT, "num_hidden_layers": 4, "attn_layer_offset": 1, "attn_layer_period": 2, "mamba_d_state": 8},
        **{"mamba_dt_rank": 4, "n_mamba_heads": 2, "num_key_value_heads": 4},
        **{"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
    },
    "RecurrentGemmaForCausalLM": {
        **{**TEXT, "lru_width": 64, "num_key_value_heads": 1, "attention_window_size": 8},
        **{"block_types": ["recurrent", "attention"]},
    },
    "FalconMambaForCausalLM": {
        **{**SPECIAL, "vocab_size": VOCABULARY, "hidden_size": 64, "state_size": 8, "num_hidden_layers": 2},
        **{"use_mambapy": False},
    },
    "OlmoHybridForCausalLM": {**GROUPED, **LINEAR},
    "CTRLLMHeadModel": {
        **{**SPECIAL, "vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 64, "dff": 128, "n_layer": 2},
        **{"n_head": 4},
    },
    "CodeGenForCausalLM": {
        **{**SPECIAL, "vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4},
        **{"rotary_dim": 8, "n_ctx": 64},
    },
    "XGLMForCausalLM": {
        **{**SPECIAL, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "d_model": 64, "ffn_dim": 128},
        **{"num_layers": 2, "attention_heads": 4},
    },
    "BioGptForCausalLM": TEXT,
    "PersimmonForCausalLM": TEXT,
    "Glm4MoeForCausalLM": {
        **{**GROUPED, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1},
        **{"topk_group": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 32},
    },
    "SmolLM3ForCausalLM": {**TEXT, "num_key_value_heads": 2, "pad_token_id": 0},
}
XLNET = {"vocab_size": VOCABULARY, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128}
ENCODERS: dict[str, dict[str, Any]] = {
    "BigBirdForMaskedLM": {**TEXT, "block_size": 2, "num_random_blocks": 1, "attention_type": "block_sparse"},
    "EsmForMaskedLM": {**TEXT, "position_embedding_type": "rotary", "mask_token_id": 3, "token_dropout": False},
    "ConvBertForMaskedLM": {**TEXT, "embedding_size": 32, "conv_kernel_size": 3, "head_ratio": 2},
    "LongformerForMaskedLM": {**TEXT, "attention_window": [8, 8], "max_position_embeddings": 80},
    "NystromformerForMaskedLM": {**TEXT, "num_landmarks": 4, "segment_means_seq_len": 16, "conv_kernel_size": 3},
    "YosoForMaskedLM": {**TEXT, "use_expectation": True},
    "Data2VecTextForMaskedLM": TEXT,
    "LayoutLMForMaskedLM": {**TEXT, "max_2d_position_embeddings": 64},
    "ReformerForMaskedLM": {
        **{**SPECIAL, "vocab_size": VOCABULARY, "hidden_size": 64, "attention_head_size": 16, "feed_forward_size": 128},
        **{
            "num_attention_heads": 4,
            "attn_layers": ["local", "lsh"],
            "local_attn_chunk_length": 8,
            "is_decoder": False,
        },
        **{"lsh_attn_chunk_length": 8, "num_buckets": 2, "num_hashes": 1, "axial_pos_shape": [4, 4]},
        **{"axial_pos_embds_dim": [16, 48], "max_position_embeddings": 16, "hash_seed": 0},
    },
}
ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "MBartForConditionalGeneration": BOTH,
    "LEDForConditionalGeneration": {
        **{**BOTH, "attention_window": [8, 8], "max_encoder_position_embeddings": 64},
        **{"max_decoder_position_embeddings": 64},
    },
    "BlenderbotForConditionalGeneration": BOTH,
    "M2M100ForConditionalGeneration": BOTH,
    "PLBartForConditionalGeneration": BOTH,
    "BigBirdPegasusForConditionalGeneration": {
        **BOTH,
        "attention_type": "block_sparse",
        "block_size": 2,
        "num_random_blocks": 1,
    },
    "ProphetNetForConditionalGeneration": {
        **{**SPECIAL, "vocab_size": VOCABULARY, "hidden_size": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128},
        **{"num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4, "ngram": 2},
        **{"num_decoder_attention_heads": 4, "max_position_embeddings": 64, "decoder_start_token_id": 1},
    },
}


def networks() -> list[Network]:
    """Return the networks."""
    return [
        *(Network(name, model_of(name, settings), masked) for name, settings in DECODERS.items()),
        *(Network(name, model_of(name, settings), masked) for name, settings in ENCODERS.items()),
        *(Network(name, model_of(name, settings), translated) for name, settings in ENCODER_DECODERS.items()),
        Network("XLNetLMHeadModel", model_of("XLNetLMHeadModel", XLNET), masked, squares),
        Network(
            "CanineForSequenceClassification",
            model_of("CanineForSequenceClassification", {**TEXT, "num_labels": CLASSES, "num_hash_buckets": 64}),
            _characters,
        ),
    ]


def _characters(generator: Generator) -> dict[str, Tensor]:
    return {"input_ids": tokens(generator), "labels": class_labels(generator)}
