"""Networks of transformers for images and sounds: depth, poses, boxes, masks, videos, sounds, and images with text."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers
from torch import Generator, Tensor, nn

from benchmarks.zoo.networks.network import CLASSES, SAMPLES, Network, squares
from benchmarks.zoo.networks.transformers_inputs import (
    AUDIO,
    BOTH,
    SIDE,
    SIZES,
    TEXT,
    VOCABULARY,
    class_labels,
    masked,
    model_of,
    pixels,
    tokens,
)

PATCHES = {**SIZES, "image_size": SIDE, "patch_size": 8}
TOWER = {**PATCHES, "projection_dim": 32}
CLASSIFIED = {**PATCHES, "num_labels": CLASSES}
WINDOWS = {"image_size": SIDE, "patch_size": 2, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4]}
WINDOWS |= {"window_size": 4}
NECK = {"neck_hidden_sizes": [16, 16, 16, 16], "fusion_hidden_size": 16, "reassemble_factors": [4, 2, 1, 0.5]}
FOUR = {**PATCHES, "num_hidden_layers": 4, "out_features": ["stage1", "stage2", "stage3", "stage4"]}
STAGES: dict[str, Any] = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64], "num_labels": CLASSES}
PICTURES: dict[str, dict[str, Any]] = {
    "Swinv2ForImageClassification": {**WINDOWS, "num_labels": CLASSES},
    "PvtV2ForImageClassification": {
        **{"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 2, 4]},
        **{"image_size": SIDE, "num_labels": CLASSES, "mlp_ratios": [2, 2, 2, 2]},
    },
    "CvtForImageClassification": {
        **{"embed_dim": [16, 32], "depth": [1, 2], "num_heads": [1, 2], "num_labels": CLASSES, "image_size": SIDE},
        **{"patch_sizes": [7, 3], "patch_stride": [4, 2], "patch_padding": [2, 1], "mlp_ratio": [2.0, 2.0]},
        **{"attention_drop_rate": [0.0, 0.0], "drop_rate": [0.0, 0.0], "drop_path_rate": [0.0, 0.0]},
        **{"qkv_bias": [True, True], "cls_token": [False, True], "kernel_qkv": [3, 3], "padding_kv": [1, 1]},
        **{"stride_kv": [2, 2], "padding_q": [1, 1], "stride_q": [1, 1], "qkv_projection_method": ["dw_bn", "dw_bn"]},
    },
    "ConvNextV2ForImageClassification": {**STAGES, "image_size": SIDE},
    "EfficientNetForImageClassification": {
        **{"image_size": SIDE, "width_coefficient": 0.5, "depth_coefficient": 0.5, "hidden_dim": 640},
        **{"num_labels": CLASSES},
    },
    "Dinov2WithRegistersForImageClassification": CLASSIFIED,
    "DINOv3ViTModel": PATCHES,
    "CLIPVisionModelWithProjection": TOWER,
    "Data2VecVisionForImageClassification": {**CLASSIFIED, "use_relative_position_bias": True},
    "YolosForObjectDetection": {**CLASSIFIED, "image_size": [SIDE, SIDE], "num_detection_tokens": 5},
    "GLPNForDepthEstimation": {
        **{"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 2, 4]},
        **{"decoder_hidden_size": 16, "mlp_ratios": [2, 2, 2, 2]},
    },
    "Swin2SRForImageSuperResolution": {**WINDOWS, "patch_size": 1, "num_heads": [2, 2], "upscale": 2},
    "DPTForDepthEstimation": {
        **{**PATCHES, **NECK, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "head_in_index": -1}
    },
}
CLIPS: dict[str, dict[str, Any]] = {
    "VideoMAEForVideoClassification": {**CLASSIFIED, "num_frames": 4, "tubelet_size": 2},
    "VivitForVideoClassification": {**CLASSIFIED, "num_frames": 4, "tubelet_size": [2, 8, 8]},
    "TimesformerForVideoClassification": {**CLASSIFIED, "num_frames": 4},
}
WAVES: dict[str, dict[str, Any]] = {
    "WavLMForSequenceClassification": AUDIO,
    "SEWForSequenceClassification": {**AUDIO, "squeeze_factor": 2},
    "Data2VecAudioForSequenceClassification": {**AUDIO, "conv_pos_kernel_size": 3, "num_conv_pos_embeddings": 2},
    "Wav2Vec2ConformerForSequenceClassification": {**AUDIO, "conv_depthwise_kernel_size": 3},
}


def networks() -> list[Network]:
    """Return the networks."""
    transcribed = {**BOTH, "input_feat_per_channel": 16, "conv_channels": 32, "max_source_positions": 64}
    transcribed |= {"max_target_positions": 64}
    moonshine = {**TEXT, "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2, "decoder_start_token_id": 1}
    moonshine |= {"encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4}
    return [
        *(Network(name, model_of(name, settings), _pictures, squares) for name, settings in PICTURES.items()),
        *(Network(name, partial(_on_backbone, name), _pictures, squares) for name in BACKBONES),
        *(Network(name, partial(_detector, name), _views, squares) for name in ("TableTransformer", "DeformableDetr")),
        *(Network(name, model_of(name, settings), _videos) for name, settings in CLIPS.items()),
        *(Network(name, model_of(name, settings), _sounds) for name, settings in WAVES.items()),
        Network(
            "Speech2TextForConditionalGeneration",
            model_of("Speech2TextForConditionalGeneration", transcribed),
            _spectra,
            squares,
        ),
        Network(
            "MoonshineForConditionalGeneration",
            model_of("MoonshineForConditionalGeneration", moonshine),
            _dictated,
            squares,
        ),
        Network(
            "CLIPTextModelWithProjection",
            model_of("CLIPTextModelWithProjection", {**TEXT, "projection_dim": 32}),
            masked,
            squares,
        ),
        Network("SiglipModel", model_of("SiglipModel", _towers()), _pairs, squares),
        Network("Siglip2Model", model_of("Siglip2Model", _patch_towers()), _patch_pairs, squares),
        Network("BlipModel", model_of("BlipModel", {**_towers(), "projection_dim": 32}), _pairs, squares),
        Network("SamModel", model_of("SamModel", _sam()), _prompts, squares),
        Network(
            "ViltForQuestionAnswering", model_of("ViltForQuestionAnswering", {**TEXT, **CLASSIFIED}), _pairs, squares
        ),
        Network("Blip2ForConditionalGeneration", _blip2, partial(_seen, 4), squares),
        Network("LlavaForConditionalGeneration", partial(_spoken, "Llava"), partial(_seen, 16), squares),
        Network("PaliGemmaForConditionalGeneration", partial(_spoken, "PaliGemma"), partial(_seen, 16), squares),
        Network("Qwen2_5_VLForConditionalGeneration", _qwen_vl, _patches, squares),
    ]


BACKBONES = ("ZoeDepthForDepthEstimation", "VitPoseForPoseEstimation", "DepthAnythingForDepthEstimation")
BACKBONES += ("UperNetForSemanticSegmentation",)


def _on_backbone(name: str) -> nn.Module:
    """Return a head on a backbone of transformers."""
    if name.startswith("Zoe"):
        backbone = transformers.BeitConfig(**FOUR, use_relative_position_bias=True, reshape_hidden_states=False)
        settings: dict[str, Any] = {**NECK, "num_relative_features": 8, "bottleneck_features": 16}
        settings |= {"bin_embedding_dim": 16, "num_attractors": [4, 2, 2, 1]}
        settings["bin_configurations"] = [{"n_bins": 8, "min_depth": 0.1, "max_depth": 10.0}]
    elif name.startswith("VitPose"):
        backbone = transformers.VitPoseBackboneConfig(
            **{**SIZES, "image_size": [SIDE, SIDE], "patch_size": [8, 8], "mlp_ratio": 2, "out_features": ["stage2"]}
        )
        settings = {"num_labels": CLASSES}
    elif name.startswith("DepthAnything"):
        backbone = transformers.Dinov2Config(**FOUR, reshape_hidden_states=False)
        settings = {**NECK, "head_hidden_size": 8, "patch_size": 8, "reassemble_hidden_size": 64}
    else:
        backbone = transformers.ConvNextConfig(**{**STAGES, "out_features": ["stage1", "stage2", "stage3", "stage4"]})
        settings = {"hidden_size": 32, "pool_scales": [1, 2], "auxiliary_channels": 16, "num_labels": CLASSES}
        settings |= {"auxiliary_in_channels": 48}
    return model_of(name, {**settings, "backbone_config": backbone})()


def _detector(family: str) -> nn.Module:
    stages = ["stage2"] if family.startswith("Table") else ["stage1", "stage2"]
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=stages, layer_type="basic"
    )
    sizes = {name: value for name, value in BOTH.items() if name.startswith(("encoder", "decoder", "d_model"))}
    settings = {**sizes, "num_queries": 5, "num_labels": CLASSES, "backbone_config": backbone}
    settings |= {"num_feature_levels": 2, "encoder_n_points": 2, "decoder_n_points": 2}
    settings.pop("decoder_start_token_id")
    return model_of(f"{family}ForObjectDetection", {**settings, "use_timm_backbone": False, "backbone": None})()


def _towers() -> dict[str, Any]:
    return {"text_config": {**TEXT, "projection_size": 64}, "vision_config": PATCHES}


def _patch_towers() -> dict[str, Any]:
    return {
        "text_config": {**TEXT, "projection_size": 64},
        "vision_config": {**SIZES, "patch_size": 8, "num_patches": 16},
    }


def _sam() -> dict[str, Any]:
    decoder = {"hidden_size": 32, "mlp_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    decoder |= {"iou_head_hidden_dim": 32}
    vision = {**SIZES, "image_size": SIDE, "patch_size": 8, "output_channels": 32, "mlp_dim": 128, "window_size": 2}
    vision |= {"global_attn_indexes": [1], "num_pos_feats": 16}
    prompts = {"hidden_size": 32, "image_size": SIDE, "patch_size": 8, "mask_input_channels": 16}
    prompts["image_embedding_size"] = SIDE // 8
    return {"vision_config": vision, "prompt_encoder_config": prompts, "mask_decoder_config": decoder}


def _blip2() -> nn.Module:
    former = {**TEXT, "encoder_hidden_size": 64, "cross_attention_frequency": 1}
    text = {"model_type": "opt", **{k: v for k, v in TEXT.items() if k != "intermediate_size"}}
    text |= {"ffn_dim": 128, "word_embed_proj_dim": 64}
    settings = {"vision_config": PATCHES, "qformer_config": former, "text_config": text, "num_query_tokens": 4}
    return model_of("Blip2ForConditionalGeneration", {**settings, "image_token_index": VOCABULARY - 1})()


def _spoken(family: str) -> nn.Module:
    """Return a decoder that reads projected image patches at the places of a special token."""
    text = {**TEXT, "num_key_value_heads": 2, "model_type": "gemma" if family == "PaliGemma" else "llama"}
    vision = {**TOWER, "model_type": "siglip_vision_model" if family == "PaliGemma" else "clip_vision_model"}
    settings = {"text_config": {**text, "head_dim": 16}, "vision_config": vision, "image_token_id": VOCABULARY - 1}
    settings |= {"image_token_index": VOCABULARY - 1, "projection_dim": 64}
    return model_of(f"{family}ForConditionalGeneration", settings)()


def _qwen_vl() -> nn.Module:
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    text = {**TEXT, "num_key_value_heads": 2, "rope_parameters": rope}
    vision = {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "patch_size": 8}
    vision |= {"out_hidden_size": 64, "window_size": 32, "fullatt_block_indexes": [1]}
    marks = {"image_token_id": VOCABULARY - 1, "video_token_id": VOCABULARY - 2}
    marks |= {"vision_start_token_id": VOCABULARY - 3, "vision_end_token_id": VOCABULARY - 4}
    return model_of("Qwen2_5_VLForConditionalGeneration", {"text_config": text, "vision_config": vision, **marks})()


def _pictures(generator: Generator) -> dict[str, Tensor]:
    return {"pixel_values": pixels(generator)}


def _views(generator: Generator) -> dict[str, Tensor]:
    return {"pixel_values": pixels(generator, 2 * SIDE)}


def _videos(generator: Generator) -> dict[str, Tensor]:
    frames = torch.randn(SAMPLES, 4, 3, SIDE, SIDE, generator=generator)
    return {"pixel_values": frames, "labels": class_labels(generator)}


def _sounds(generator: Generator) -> dict[str, Tensor]:
    return {"input_values": torch.randn(SAMPLES, 800, generator=generator), "labels": class_labels(generator)}


def _spectra(generator: Generator) -> dict[str, Tensor]:
    sounds = torch.randn(SAMPLES, 64, 16, generator=generator)
    return {"input_features": sounds, "decoder_input_ids": tokens(generator)}


def _dictated(generator: Generator) -> dict[str, Tensor]:
    sounds = torch.randn(SAMPLES, 6400, generator=generator)
    return {"input_values": sounds, "decoder_input_ids": tokens(generator)}


def _pairs(generator: Generator) -> dict[str, Tensor]:
    return {"input_ids": tokens(generator), "pixel_values": pixels(generator)}


def _patch_pairs(generator: Generator) -> dict[str, Tensor]:
    patches = torch.randn(SAMPLES, 16, 3 * 8 * 8, generator=generator)
    shapes = torch.tensor([[4, 4]] * SAMPLES)
    drawn = {"input_ids": tokens(generator), "pixel_values": patches, "spatial_shapes": shapes}
    return {**drawn, "pixel_attention_mask": torch.ones(SAMPLES, 16, dtype=torch.long)}


def _prompts(generator: Generator) -> dict[str, Tensor]:
    points = torch.rand(SAMPLES, 1, 2, 2, generator=generator) * SIDE
    return {"pixel_values": pixels(generator), "input_points": points}


def _seen(length: int, generator: Generator) -> dict[str, Tensor]:
    """Return images, and text with a placeholder token for each image token at its start."""
    marks = torch.full((SAMPLES, length), VOCABULARY - 1)
    text = tokens(generator).clamp(max=VOCABULARY - 5)
    return {"pixel_values": pixels(generator), "input_ids": torch.cat([marks, text], 1)}


def _patches(generator: Generator) -> dict[str, Tensor]:
    """Return a single sample, because rows of patches are no samples: 16 patches of an image, 4 tokens."""
    marks = torch.full((1, 4), VOCABULARY - 1)
    text = tokens(generator)[:1].clamp(max=VOCABULARY - 5)
    kinds = torch.cat([torch.ones(1, 4, dtype=torch.long), torch.zeros_like(text)], 1)
    return {
        "input_ids": torch.cat([marks, text], 1),
        "pixel_values": torch.randn(16, 3 * 2 * 8 * 8, generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": kinds,
    }
