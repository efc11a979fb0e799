"""Small networks of many architectures, with a batch each, for finding and removing units."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from cases.depth import hand_made
from cases.depth.two_stacks import batch_of, two_stacks
from cases.models import width
from cases.models.tiny import TEXT, stir
from torch import nn

Case = tuple[nn.Module, Any]
TOKENS = torch.arange(16).view(2, 8) % 13 + 3
SMALL = {**TEXT, "num_hidden_layers": 2}


def image(size: int = 32) -> torch.Tensor:
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))


def seeded(make: Callable[[], nn.Module], batch: Any) -> Callable[[], Case]:
    def made() -> Case:
        torch.manual_seed(0)
        return make().eval(), batch

    return made


def _vision(name: str, size: int = 32, **settings: Any) -> Callable[[], Case]:
    return seeded(partial(timm.create_model, name, num_classes=7, **settings), image(size))


def _torchvision(name: str, size: int = 32, **settings: Any) -> Callable[[], Case]:
    return seeded(partial(torchvision.models.get_model, name, num_classes=7, **settings), image(size))


def _ultralytics(name: str) -> nn.Module:
    from ultralytics.nn.tasks import DetectionModel

    return DetectionModel(f"{name}.yaml", verbose=False)


def _language(name: str, head: str = "ForCausalLM", **settings: Any) -> Callable[[], Case]:
    return seeded(lambda: stir(_configured(name, head, settings), scale=3.0), {"input_ids": TOKENS})


def _pixels(name: str, head: str, size: int = 32, **settings: Any) -> Callable[[], Case]:
    return seeded(partial(_configured, name, head, settings), {"pixel_values": image(size)})


def _configured(name: str, head: str, settings: dict[str, Any]) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(**settings)
    return getattr(transformers, f"{name}{head}")(config)


def _own(make: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Callable[[], Case]:
    inputs = [torch.rand(shape, generator=torch.Generator().manual_seed(0)) for shape in shapes]
    return seeded(make, inputs[0] if len(inputs) == 1 else dict(zip(("image", "text"), inputs, strict=True)))


def _encoder() -> nn.Module:
    """PyTorch's own encoder, the norm behind each sum."""
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    return nn.Sequential(nn.Linear(4, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 3))


OWN: dict[str, Callable[[], Case]] = {
    "unet": _own(hand_made.UNet, (2, 3, 16, 16)),
    "detector": _own(hand_made.Detector, (2, 3, 32, 32)),
    "split": _own(hand_made.Split, (2, 3, 8, 8)),
    "in-place sums": _own(hand_made.InPlaceSums, (2, 3, 8, 8)),
    "post-norm": _own(hand_made.PostNorm, (2, 3, 5)),
    "shared": _own(hand_made.Shared, (2, 4)),
    "by value": _own(hand_made.ByValue, (2, 6)),
    "recurrent": _own(hand_made.Recurrent, (2, 3, 4)),
    "two inputs": _own(hand_made.TwoInputs, (2, 4), (2, 3)),
    "gated": _own(hand_made.Gated, (2, 3, 4)),
    "1-d": _own(hand_made.Sequence1d, (2, 2, 16)),
    "encoder": _own(_encoder, (2, 5, 4)),
}
WINDOWS = {"img_size": 32, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}
VISION: dict[str, Callable[[], Case]] = {
    "resnet18": _torchvision("resnet18"),
    "resnet50": _torchvision("resnet50"),
    "densenet": width.BUILD["densenet"],
    "mobilenet_v3": _torchvision("mobilenet_v3_small"),
    "regnet": _torchvision("regnet_y_400mf"),
    "shufflenet": _torchvision("shufflenet_v2_x0_5"),
    "googlenet": _torchvision("googlenet", 64, aux_logits=False, init_weights=False),
    "vgg": width.BUILD["vgg"],
    "squeezenet": _torchvision("squeezenet1_1", 64),
    "efficientnet": width.BUILD["efficientnet"],
    "convnext": _vision("convnext_atto"),
    "convnext_v2": _vision("convnextv2_atto"),
    "deit": _vision("deit_tiny_patch16_224", img_size=32, depth=3, embed_dim=48, num_heads=3),
    "mixer": _vision("mixer_s32_224", img_size=32),
    "gmlp": _vision("gmlp_ti16_224", img_size=32),
    "resmlp": _vision("resmlp_12_224", img_size=32),
    "swin": _vision("swin_tiny_patch4_window7_224", **WINDOWS),
    "poolformer": _vision("poolformer_s12"),
    "metaformer": _vision("caformer_s18"),
    "resnest": _vision("resnest14d"),
    "nfnet": _vision("nfnet_l0"),
    "cspdarknet": _vision("cspdarknet53"),
    "edgenext": _vision("edgenext_xx_small", 64),
    "xcit": _vision("xcit_nano_12_p16_224", img_size=32, depth=2),
    "cait": _vision("cait_xxs24_224", img_size=32, depth=2, embed_dim=48, num_heads=4),
    "maxvit": _vision("maxvit_pico_rw_256", 64, img_size=64),
    "res2net": _vision("res2net50_14w_8s"),
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
GPT = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4}
STAGES = {"hidden_sizes": [8, 16, 16, 24], "num_attention_heads": [1, 2, 2, 3], "depths": [1, 1, 2, 1]}
HUGGING_FACE: dict[str, Callable[[], Case]] = {
    "llama": _language("Llama", **{**GROUPED, "num_hidden_layers": 3}),
    "bert": _language("Bert", "ForSequenceClassification", **SMALL),
    "gemma2": _language("Gemma2", **GROUPED, head_dim=8),
    "phi": _language("Phi", **SMALL),
    "phi3": _language("Phi3", **SMALL),
    "neox": _language("GPTNeoX", **SMALL),
    "gptj": _language("GPTJ", **GPT, rotary_dim=4),
    "falcon": _language("Falcon", **SMALL),
    "bloom": _language("Bloom", vocab_size=61, hidden_size=32, n_layer=2, n_head=4),
    "mixtral": _language("Mixtral", **GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "gpt2": _language("GPT2", "LMHeadModel", **GPT, n_positions=32),
    "segformer": _pixels("Segformer", "ForSemanticSegmentation", 64, **STAGES, decoder_hidden_size=16, num_labels=3),
    "convnext_hf": _pixels(
        "ConvNext", "ForImageClassification", hidden_sizes=[8, 16, 24, 32], depths=[2, 2, 2, 2], num_labels=3
    ),
    "t5": lambda: (two_stacks("t5", 2, 2), batch_of("t5")),
    "whisper": lambda: (two_stacks("whisper", 2, 2), batch_of("whisper")),
}
YOLO = {  # an optional extra
    name: seeded(partial(_ultralytics, name), image(64)) for name in ("yolov8n", "yolo11n") if find_spec("ultralytics")
}
ARCHITECTURES = {**OWN, **VISION, **HUGGING_FACE, **YOLO}
QUICK = ("unet", "in-place sums", "encoder", "detector", "split", "deit", "mobilenet_v3", "llama", "t5", "phi", "bloom")


def quick_or_slow() -> list[Any]:
    """Names of all architectures, slow ones with a mark."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]
