"""Networks of transformers by small configs: encoders, decoders, both, routed experts, vision and audio."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from benchmarks.zoo.networks import transformers_rebuilt, transformers_texts, transformers_views
from benchmarks.zoo.networks.network import CLASSES, SAMPLES, MakeBatch, Network, squares
from benchmarks.zoo.networks.transformers_inputs import (
    AUDIO,
    BOTH,
    SIDE,
    SIZES,
    SPECIAL,
    TEXT,
    VOCABULARY,
    class_labels,
    masked,
    model_of,
    pixels,
    tokens,
    translated,
)

LABELLED = {**TEXT, "num_labels": CLASSES}
GROUPED = {**TEXT, "num_key_value_heads": 2}  # a key for two queries
EXPERTS = {**GROUPED, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
T5 = {**SPECIAL, "vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
T5 |= {"decoder_start_token_id": 0}
PATCHES = {**SIZES, "image_size": SIDE, "patch_size": 8, "num_labels": CLASSES}
STAGES = {"depths": [1, 1, 1, 1], "num_labels": CLASSES, "image_size": SIDE}

ENCODERS: dict[str, dict[str, Any]] = {
    "BertForSequenceClassification": LABELLED,
    "RobertaForSequenceClassification": LABELLED,
    "ElectraForSequenceClassification": {**LABELLED, "embedding_size": 32},
    "AlbertForSequenceClassification": {**LABELLED, "embedding_size": 32, "num_hidden_groups": 1},
    "DistilBertForSequenceClassification": {
        **{"vocab_size": VOCABULARY, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
        **{"max_position_embeddings": 64, "num_labels": CLASSES},
    },
    "MPNetForSequenceClassification": LABELLED,
    "DebertaV2ForSequenceClassification": {
        **LABELLED,
        **{"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0},
    },
    "ModernBertForSequenceClassification": {**LABELLED, "global_attn_every_n_layers": 2, "local_attention": 8},
    "RoFormerForSequenceClassification": {**LABELLED, "embedding_size": 64},
    "MobileBertForSequenceClassification": {
        **{**LABELLED, "hidden_size": 64, "embedding_size": 32, "true_hidden_size": 32},
        **{"intra_bottleneck_size": 32, "num_feedforward_networks": 2, "intermediate_size": 64},
    },
    "SqueezeBertForSequenceClassification": {**LABELLED, "embedding_size": 64},
    "FNetForSequenceClassification": {**LABELLED, "use_tpu_fourier_optimizations": False},
}
DECODERS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {
        **SPECIAL,
        **{"n_embd": 64, "n_inner": 128, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY},
    },
    "GPTNeoXForCausalLM": TEXT,
    "GPTNeoForCausalLM": {
        **{**SPECIAL, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY, "window_size": 8},
        **{"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64, "intermediate_size": 128},
    },
    "GPTJForCausalLM": {
        **{**SPECIAL, "n_embd": 64, "n_inner": 128, "n_layer": 2, "n_head": 4, "n_positions": 64},
        **{"vocab_size": VOCABULARY, "rotary_dim": 8},
    },
    "GPTBigCodeForCausalLM": {
        **SPECIAL,
        **{"n_embd": 64, "n_inner": 128, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY},
    },
    "OPTForCausalLM": {
        **{k: v for k, v in TEXT.items() if k != "intermediate_size"},
        **{"ffn_dim": 128, "word_embed_proj_dim": 64},
    },
    "BloomForCausalLM": {**SPECIAL, "vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4},
    "FalconForCausalLM": {**TEXT, "new_decoder_architecture": False, "multi_query": True},
    "MptForCausalLM": {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": VOCABULARY, "max_seq_len": 64},
    "LlamaForCausalLM": GROUPED,
    "MistralForCausalLM": GROUPED,
    "GemmaForCausalLM": {**GROUPED, "head_dim": 16},
    "Gemma2ForCausalLM": {**GROUPED, "head_dim": 16, "sliding_window": 8},
    "Gemma3ForCausalLM": {**GROUPED, "head_dim": 16, "sliding_window": 8},
    "Qwen2ForCausalLM": GROUPED,
    "Qwen3ForCausalLM": {**GROUPED, "head_dim": 16},
    "PhiForCausalLM": TEXT,
    "Phi3ForCausalLM": GROUPED,
    "StableLmForCausalLM": GROUPED,
    "Starcoder2ForCausalLM": GROUPED,
    "CohereForCausalLM": GROUPED,
    "Olmo2ForCausalLM": GROUPED,
    "GlmForCausalLM": {**GROUPED, "head_dim": 16},
    "MambaForCausalLM": {**SPECIAL, "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2},
    "MixtralForCausalLM": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2MoeForCausalLM": {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 64},
    "Qwen3MoeForCausalLM": {**EXPERTS, "num_experts": 4, "head_dim": 16},
    "OlmoeForCausalLM": {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2},
    "GptOssForCausalLM": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "DeepseekV3ForCausalLM": {
        **{**EXPERTS, "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2},
        **{"topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 32},
        **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16},
    },
}
ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "T5ForConditionalGeneration": T5,
    "MT5ForConditionalGeneration": {**T5, "feed_forward_proj": "gated-gelu"},
    "BartForConditionalGeneration": BOTH,
    "MarianMTModel": BOTH,
    "PegasusForConditionalGeneration": BOTH,
    "SwitchTransformersForConditionalGeneration": {**T5, "num_experts": 4, "num_decoder_layers": 2},
}
VISION: dict[str, dict[str, Any]] = {
    "ViTForImageClassification": PATCHES,
    "DeiTForImageClassification": PATCHES,
    "BeitForImageClassification": PATCHES,
    "Dinov2ForImageClassification": PATCHES,
    "SiglipForImageClassification": {"vision_config": PATCHES, "num_labels": CLASSES},
    "ConvNextForImageClassification": {**STAGES, "hidden_sizes": [16, 32, 48, 64]},
    "ResNetForImageClassification": {
        **STAGES,
        **{"embedding_size": 16, "hidden_sizes": [32, 48, 64, 96], "layer_type": "bottleneck"},
    },
    "RegNetForImageClassification": {
        **STAGES,
        **{"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "groups_width": 8},
    },
    "SwinForImageClassification": {
        **{"image_size": SIDE, "patch_size": 2, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4]},
        **{"window_size": 4, "num_labels": CLASSES},
    },
    "SegformerForImageClassification": {
        **{"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 2, 4]},
        **{"decoder_hidden_size": 32, "num_labels": CLASSES},
    },
    "MobileNetV2ForImageClassification": {"image_size": SIDE, "depth_multiplier": 0.5, "num_labels": CLASSES},
    "MobileViTForImageClassification": {
        **{"image_size": 64, "hidden_sizes": [32, 48, 64], "neck_hidden_sizes": [8, 16, 24, 32, 48, 64, 96]},
        **{"num_labels": CLASSES},
    },
    "PoolFormerForImageClassification": {**STAGES, "hidden_sizes": [16, 32, 48, 64]},
}


def networks() -> list[Network]:
    """Return the suite."""
    return [
        *(Network(name, model_of(name, settings), _classes) for name, settings in ENCODERS.items()),
        Network("BertForMaskedLM", model_of("BertForMaskedLM", TEXT), masked),
        *(Network(name, model_of(name, settings), masked) for name, settings in DECODERS.items()),
        *(Network(name, model_of(name, settings), translated) for name, settings in ENCODER_DECODERS.items()),
        *(Network(name, model_of(name, settings), _pictures(settings)) for name, settings in VISION.items()),
        *_others(),
        *transformers_rebuilt.networks(),
        *transformers_texts.networks(),
        *transformers_views.networks(),
    ]


def _others() -> list[Network]:
    """Return speech, and images beside text."""
    tower = {**SIZES, "projection_dim": 32}
    clip = {
        "text_config": {**TEXT, "projection_dim": 32},
        "vision_config": {**tower, "image_size": SIDE, "patch_size": 8},
    }
    whisper = {**BOTH, "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 64}
    spectrogram = {**SIZES, "patch_size": 8, "max_length": 64, "num_mel_bins": 32, "num_labels": CLASSES}
    segments = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 2, 4]}
    segments |= {"decoder_hidden_size": 32, "num_labels": CLASSES}
    return [
        Network("Wav2Vec2ForSequenceClassification", model_of("Wav2Vec2ForSequenceClassification", AUDIO), _waves),
        Network("HubertForSequenceClassification", model_of("HubertForSequenceClassification", AUDIO), _waves),
        Network("ASTForAudioClassification", model_of("ASTForAudioClassification", spectrogram), _spectrograms),
        Network("WhisperForConditionalGeneration", model_of("WhisperForConditionalGeneration", whisper), _speech),
        Network("CLIPModel", model_of("CLIPModel", clip), _pairs, squares),
        Network(
            "SegformerForSemanticSegmentation",
            model_of("SegformerForSemanticSegmentation", segments),
            _maps,
        ),
    ]


def _classes(generator: Generator) -> dict[str, Tensor]:
    return {"input_ids": tokens(generator), "labels": class_labels(generator)}


def _pictures(settings: dict[str, Any]) -> MakeBatch:
    side = settings.get("image_size", SIDE)

    def batch(generator: Generator) -> dict[str, Tensor]:
        return {"pixel_values": pixels(generator, side), "labels": class_labels(generator)}

    return batch


def _waves(generator: Generator) -> dict[str, Tensor]:
    return {"input_values": torch.randn(SAMPLES, 800, generator=generator), "labels": class_labels(generator)}


def _spectrograms(generator: Generator) -> dict[str, Tensor]:
    return {"input_values": torch.randn(SAMPLES, 64, 32, generator=generator), "labels": class_labels(generator)}


def _speech(generator: Generator) -> dict[str, Tensor]:
    drawn = tokens(generator)
    sounds = torch.randn(SAMPLES, 16, 64, generator=generator)
    return {"input_features": sounds, "decoder_input_ids": drawn.roll(1, 1), "labels": drawn}


def _pairs(generator: Generator) -> dict[str, Tensor]:
    return {"input_ids": tokens(generator), "pixel_values": pixels(generator)}


def _maps(generator: Generator) -> dict[str, Tensor]:
    classes = torch.randint(0, CLASSES, (SAMPLES, SIDE, SIDE), generator=generator)
    return {"pixel_values": pixels(generator), "labels": classes}
