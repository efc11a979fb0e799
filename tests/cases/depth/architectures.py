"""Small networks of many architectures, with a batch each, for finding and removing units."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from cases.depth import hand_made
from cases.models import width
from cases.models.tiny import TEXT, stir
from torch import nn

Case = tuple[nn.Module, Any]
TOKENS = torch.arange(16).view(2, 8) % 13 + 3
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def image(size: int = 32) -> torch.Tensor:
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))


def _vision(name: str, size: int = 32, **settings: Any) -> Callable[[], Case]:
    def make() -> Case:
        import timm

        torch.manual_seed(0)
        return timm.create_model(name, num_classes=7, **settings).eval(), image(size)

    return make


def _torchvision(name: str, size: int = 32, **settings: Any) -> Callable[[], Case]:
    def make() -> Case:
        import torchvision

        torch.manual_seed(0)
        return getattr(torchvision.models, name)(num_classes=7, **settings).eval(), image(size)

    return make


def _ultralytics(name: str, size: int = 64) -> Callable[[], Case]:
    def make() -> Case:
        from ultralytics.nn.tasks import DetectionModel

        torch.manual_seed(0)
        return DetectionModel(f"{name}.yaml", verbose=False).eval(), image(size)

    return make


def _language(config: str, model: str, **settings: Any) -> Callable[[], Case]:
    def make() -> Case:
        import transformers

        torch.manual_seed(0)
        made = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return stir(made, scale=3.0), {"input_ids": TOKENS}

    return make


def _pixels(config: str, model: str, size: int = 32, **settings: Any) -> Callable[[], Case]:
    def make() -> Case:
        import transformers

        torch.manual_seed(0)
        made = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return made.eval(), {"pixel_values": image(size)}

    return make


def _own(name: str, *shapes: tuple[int, ...]) -> Callable[[], Case]:
    def make() -> Case:
        torch.manual_seed(0)
        inputs = tuple(torch.rand(shape) for shape in shapes)
        model = getattr(hand_made, name)().eval()
        return model, inputs[0] if len(inputs) == 1 else dict(zip(("image", "text"), inputs, strict=True))

    return make


OWN: dict[str, Callable[[], Case]] = {
    "unet": _own("UNet", (2, 3, 16, 16)),
    "detector": _own("Detector", (2, 3, 32, 32)),
    "split": _own("Split", (2, 3, 8, 8)),
    "in-place sums": _own("InPlaceSums", (2, 3, 8, 8)),
    "squeeze-excite": _own("SqueezeExcite", (2, 3, 8, 8)),
    "post-norm": _own("PostNorm", (2, 3, 5)),
    "dense": _own("Dense", (2, 3, 8, 8)),
    "shared": _own("Shared", (2, 4)),
    "by value": _own("ByValue", (2, 6)),
    "recurrent": _own("Recurrent", (2, 3, 4)),
    "two inputs": _own("TwoInputs", (2, 4), (2, 3)),
    "gated": _own("Gated", (2, 3, 4)),
    "1-d": _own("Sequence1d", (2, 2, 16)),
}
VISION: dict[str, Callable[[], Case]] = {
    "resnet18": _torchvision("resnet18"),
    "resnet50": _torchvision("resnet50"),
    "densenet": _torchvision("densenet121", 32),
    "mobilenet_v3": _torchvision("mobilenet_v3_small"),
    "regnet": _torchvision("regnet_y_400mf"),
    "shufflenet": _torchvision("shufflenet_v2_x0_5"),
    "googlenet": _torchvision("googlenet", 64, aux_logits=False, init_weights=False),
    "vgg": width.BUILD["vgg"],
    "squeezenet": _torchvision("squeezenet1_1", 64),
    "efficientnet": _torchvision("efficientnet_b0", 32),
    "convnext": _vision("convnext_atto", 32),
    "convnext_v2": _vision("convnextv2_atto", 32),
    "deit": _vision("deit_tiny_patch16_224", 32, img_size=32, depth=3, embed_dim=48, num_heads=3),
    "mixer": _vision("mixer_s32_224", 32, img_size=32),
    "gmlp": _vision("gmlp_ti16_224", 32, img_size=32),
    "resmlp": _vision("resmlp_12_224", 32, img_size=32),
    "swin": _vision(
        "swin_tiny_patch4_window7_224", 32, img_size=32, embed_dim=24, depths=(2, 2), num_heads=(2, 4), window_size=4
    ),
    "poolformer": _vision("poolformer_s12", 32),
    "metaformer": _vision("caformer_s18", 32),
    "resnet_timm": _vision("resnet26", 32),
    "resnest": _vision("resnest14d", 32),
    "nfnet": _vision("nfnet_l0", 32),
    "cspdarknet": _vision("cspdarknet53", 32),
    "edgenext": _vision("edgenext_xx_small", 64),
    "xcit": _vision("xcit_nano_12_p16_224", 32, img_size=32, depth=2),
    "cait": _vision("cait_xxs24_224", 32, img_size=32, depth=2, embed_dim=48, num_heads=4),
    "maxvit": _vision("maxvit_pico_rw_256", 64, img_size=64),
    "res2net": _vision("res2net50_14w_8s", 32),
}
HUGGING_FACE: dict[str, Callable[[], Case]] = {
    "llama": _language("LlamaConfig", "LlamaForCausalLM", **{**TEXT, "num_hidden_layers": 3, "num_key_value_heads": 2}),
    "bert": _language("BertConfig", "BertForSequenceClassification", **{**TEXT, **SMALL}),
    "gemma": _language("GemmaConfig", "GemmaForCausalLM", **{**TEXT, **SMALL, "num_key_value_heads": 2, "head_dim": 8}),
    "gemma2": _language(
        "Gemma2Config", "Gemma2ForCausalLM", **{**TEXT, **SMALL, "num_key_value_heads": 2, "head_dim": 8}
    ),
    "phi": _language("PhiConfig", "PhiForCausalLM", **{**TEXT, **SMALL}),
    "phi3": _language("Phi3Config", "Phi3ForCausalLM", **{**TEXT, **SMALL}),
    "neox": _language("GPTNeoXConfig", "GPTNeoXForCausalLM", **{**TEXT, **SMALL}),
    "gptj": _language("GPTJConfig", "GPTJForCausalLM", vocab_size=61, n_embd=32, n_layer=2, n_head=4, rotary_dim=4),
    "falcon": _language("FalconConfig", "FalconForCausalLM", **{**TEXT, **SMALL}),
    "bloom": _language("BloomConfig", "BloomForCausalLM", vocab_size=61, hidden_size=32, n_layer=2, n_head=4),
    "mixtral": _language(
        "MixtralConfig",
        "MixtralForCausalLM",
        **{**TEXT, **SMALL, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "gpt2": _language("GPT2Config", "GPT2LMHeadModel", vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=32),
    "segformer": _pixels(
        "SegformerConfig",
        "SegformerForSemanticSegmentation",
        64,
        hidden_sizes=[8, 16, 16, 24],
        num_attention_heads=[1, 2, 2, 3],
        depths=[1, 1, 2, 1],
        decoder_hidden_size=16,
        num_labels=3,
    ),
    "dinov2": _pixels(
        "Dinov2Config",
        "Dinov2ForImageClassification",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=8,
        num_labels=3,
    ),
    "convnext_hf": _pixels(
        "ConvNextConfig",
        "ConvNextForImageClassification",
        hidden_sizes=[8, 16, 24, 32],
        depths=[2, 2, 2, 2],
        num_labels=3,
    ),
}


def _t5() -> Case:
    import transformers

    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=61, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config).eval(), {"input_ids": TOKENS, "decoder_input_ids": TOKENS}


def _whisper() -> Case:
    import transformers

    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=61, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=8,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    return model, {"input_features": torch.rand(2, 8, 16), "decoder_input_ids": TOKENS}


def _encoder() -> Case:
    """PyTorch's own encoder, the norm behind each sum."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    return nn.Sequential(nn.Linear(4, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 3)).eval(), torch.rand(
        2, 5, 4
    )


HUGGING_FACE |= {"t5": _t5, "whisper": _whisper}
OWN |= {"encoder": _encoder}
YOLO = {name: _ultralytics(name) for name in ("yolov8n", "yolo11n") if find_spec("ultralytics")}  # an optional extra
ARCHITECTURES = {**OWN, **VISION, **HUGGING_FACE, **YOLO}
QUICK = ("unet", "in-place sums", "encoder", "detector", "split", "deit", "mobilenet_v3", "llama", "t5", "phi", "bloom")


def quick_or_slow() -> list[Any]:
    """Names of all architectures, slow ones with a mark."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]
