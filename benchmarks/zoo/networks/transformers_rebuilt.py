"""Networks of transformers that are harder to rebuild: composed, with forwards that write, or with unusual configs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import Generator, Tensor, nn

from benchmarks.zoo.networks.network import CLASSES, SAMPLES, Network, squares
from benchmarks.zoo.networks.transformers_inputs import (
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

GROUPED = {**TEXT, "num_key_value_heads": 2}
SMALL_STATES = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
WINDOWS = {"image_size": SIDE, "patch_size": 2, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4]}
# Forwards that write: a shift, a capacity, the last length, and whether weights are divided.
WRITING: dict[str, dict[str, Any]] = {
    "FunnelForMaskedLM": {
        **{"vocab_size": VOCABULARY, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 64, "n_head": 4},
        **{"d_head": 16, "d_inner": 128},
    },
    "RwkvForCausalLM": {
        **{**SPECIAL, "vocab_size": VOCABULARY, "hidden_size": 64, "attention_hidden_size": 64},
        **{"intermediate_size": 128, "num_hidden_layers": 2, "context_length": 64, "rescale_every": 1},
    },
}
# Configs with infinity, and with lists where a default is a tuple.
UNUSUAL: dict[str, dict[str, Any]] = {
    "Mamba2ForCausalLM": {
        **{**SPECIAL, "vocab_size": VOCABULARY, "hidden_size": 64, "state_size": 8, "num_hidden_layers": 2},
        **{"num_heads": 8, "head_dim": 16, "n_groups": 2},
    },
    "BambaForCausalLM": {**GROUPED, **SMALL_STATES, "attn_layer_indices": [1]},
    "FalconH1ForCausalLM": {**GROUPED, **SMALL_STATES, "mamba_d_ssm": 128},
    "NemotronHForCausalLM": {
        **{name: value for name, value in GROUPED.items() if name != "num_hidden_layers"},
        **{"layers_block_type": ["mamba", "attention", "mamba"], "mamba_num_heads": 8, "mamba_head_dim": 16},
        **{"ssm_state_size": 8, "n_groups": 1, "head_dim": 16},
    },
    "GraniteMoeHybridForCausalLM": {
        **{**GROUPED, **SMALL_STATES, "layer_types": ["mamba", "attention"], "num_local_experts": 4},
        **{"num_experts_per_tok": 2, "shared_intermediate_size": 32},
    },
}


def networks() -> list[Network]:
    """Return the networks."""
    hiera = {"image_size": [SIDE, SIDE], "patch_size": [7, 7], "patch_stride": [4, 4], "embed_dim": 32}
    hiera |= {"depths": [1, 1], "num_labels": CLASSES, "num_heads": [1, 2], "query_stride": [2, 2]}
    hiera |= {"num_query_pool": 1, "masked_unit_size": [4, 4]}
    experts = {"num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "expert_capacity": 32}
    experts |= {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}  # layers that a step skips have no gradients
    nllb = model_of("NllbMoeForConditionalGeneration", {**BOTH, **experts})
    swin = model_of("SwinForImageClassification", {**WINDOWS, "window_size": 8, "num_labels": CLASSES})
    return [
        Network("SwinForImageClassification-wide-windows", swin, _pictures),
        Network("ClapModel", _clap, _sounds, squares),
        *(Network(name, model_of(name, settings), masked, squares) for name, settings in WRITING.items()),
        Network("NllbMoeForConditionalGeneration", nllb, translated),
        *(Network(name, model_of(name, settings), masked) for name, settings in UNUSUAL.items()),
        Network("HieraForImageClassification", model_of("HieraForImageClassification", hiera), _pictures),
        *(Network(name, partial(_detector, name), _views, squares) for name in ("Detr", "ConditionalDetr")),
        Network("RTDetr", _rt_detr, _views, squares),
        Network("Donut", partial(_reader, _donut), _read, squares),
        Network("TrOCR", partial(_reader, _trocr), _read, squares),
    ]


def _clap() -> nn.Module:
    audio = {"spec_size": 64, "num_mel_bins": 16, "patch_size": 4, "patch_stride": [4, 4], "depths": [1, 2]}
    audio |= {"hidden_size": 64, "patch_embeds_hidden_size": 32, "num_attention_heads": [2, 4], "window_size": 8}
    text = {**TEXT, "projection_dim": 32}
    settings = {"text_config": text, "audio_config": {**audio, "projection_dim": 32}, "projection_dim": 32}
    return model_of("ClapModel", settings)()


def _detector(family: str) -> nn.Module:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"], layer_type="basic"
    )
    sizes = {name: value for name, value in BOTH.items() if name.startswith(("encoder", "decoder", "d_model"))}
    sizes.pop("decoder_start_token_id")
    settings = {**sizes, "num_queries": 5, "num_labels": CLASSES, "backbone_config": backbone}
    return model_of(f"{family}ForObjectDetection", {**settings, "use_timm_backbone": False, "backbone": None})()


def _rt_detr() -> nn.Module:
    stages: dict[str, Any] = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "embedding_size": 8}
    outputs = ["stage2", "stage3", "stage4"]
    backbone = transformers.RTDetrResNetConfig(**stages, out_features=outputs, layer_type="basic")
    settings = {"backbone_config": backbone, "num_labels": CLASSES, "num_queries": 5, "d_model": 32}
    settings |= {"encoder_hidden_dim": 32, "encoder_ffn_dim": 64, "encoder_in_channels": [16, 16, 32]}
    settings |= {"decoder_ffn_dim": 64, "decoder_in_channels": [32, 32, 32], "decoder_layers": 2, "decoder_n_points": 2}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "hidden_expansion": 0.5}
    return model_of("RTDetrForObjectDetection", {**settings, **heads})()


def _reader(parts: Callable[[], tuple[Any, Any]]) -> nn.Module:
    """Return an encoder of images with a decoder of text."""
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(*parts())
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return transformers.VisionEncoderDecoderModel(config)


def _donut() -> tuple[Any, Any]:
    decoder = transformers.MBartConfig(**BOTH, is_decoder=True, add_cross_attention=True)
    return transformers.DonutSwinConfig(**WINDOWS, window_size=8), decoder


def _trocr() -> tuple[Any, Any]:
    sizes = {name: value for name, value in BOTH.items() if not name.startswith("encoder")}
    return transformers.ViTConfig(**SIZES, image_size=SIDE, patch_size=8), transformers.TrOCRConfig(**sizes)


def _pictures(generator: Generator) -> dict[str, Tensor]:
    return {"pixel_values": pixels(generator), "labels": class_labels(generator)}


def _views(generator: Generator) -> dict[str, Tensor]:
    return {"pixel_values": pixels(generator, 2 * SIDE)}


def _read(generator: Generator) -> dict[str, Tensor]:
    return {"pixel_values": pixels(generator), "decoder_input_ids": tokens(generator)}


def _sounds(generator: Generator) -> dict[str, Tensor]:
    return {"input_ids": tokens(generator), "input_features": torch.randn(SAMPLES, 1, 64, 16, generator=generator)}
