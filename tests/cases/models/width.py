"""Seeded models of the families with groups, with a batch each; small where the family allows.

Norms are moved off the initial values: no bias is zero, and every branch affects the output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from cases.models import tiny
from torch import Tensor, nn

from prunerecover.recipes.networks.cifar_resnet import CifarResNet

Built = tuple[nn.Module, Any]


def stirred(model: nn.Module, seed: int = 0, scale: float = 1.0) -> nn.Module:
    """Move vectors, zeros and running statistics off the initial values; eval mode, float64.

    Matrices are scaled by `scale`: initial ones of transformers are too small for units to matter.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1 or not parameter.any() or parameter.shape[1:].numel() == 1:
                parameter.add_(0.2 * torch.rand(parameter.shape, generator=generator))
            else:
                parameter.mul_(scale)
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")) or (buffer.is_floating_point() and buffer.ndim == 1):
                buffer.add_(0.2 * torch.rand(buffer.shape, generator=generator))
    return model.eval().double()


def images(size: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def _torchvision(name: str, size: int, scale: float = 1.0, **kwargs: Any) -> Built:
    from torchvision import models

    return stirred(getattr(models, name)(weights=None, **kwargs), scale=scale), images(size)


def _bottlenecks(**kwargs: Any) -> Built:
    from torchvision.models.resnet import Bottleneck, ResNet

    return stirred(ResNet(Bottleneck, [1, 2, 1, 1], num_classes=7, **kwargs)), images(32)


def _vgg() -> Built:
    from torchvision.models.vgg import VGG, make_layers

    net = VGG(make_layers([8, "M", 12, "M", 16], batch_norm=True), num_classes=7)
    net.avgpool = nn.AdaptiveAvgPool2d(2)
    net.classifier[0], net.classifier[3] = nn.Linear(64, 24), nn.Linear(24, 20)
    net.classifier[6] = nn.Linear(20, 7)
    return stirred(net), images(16)


def _densenet() -> Built:
    from torchvision.models import DenseNet

    return stirred(DenseNet(6, (2, 3), 8, bn_size=2, num_classes=7)), images(32)


def _mobilenet() -> Built:
    return _torchvision("mobilenet_v2", 32, width_mult=0.25, num_classes=7)


def _efficientnet() -> Built:
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    settings = [MBConvConfig(1, 3, 1, 16, 8, 1, 1, 1), MBConvConfig(4, 5, 2, 8, 16, 2, 1, 1)]
    return stirred(EfficientNet(settings, 0.2, num_classes=7, last_channel=24)), images(16)


def _convnext() -> Built:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return stirred(ConvNeXt([CNBlockConfig(8, 12, 2), CNBlockConfig(12, None, 2)], num_classes=7), scale=5), images(32)


def _timm(name: str, size: int, scale: float = 5.0, **kwargs: Any) -> Built:
    import timm

    torch.manual_seed(0)
    return stirred(timm.create_model(name, num_classes=7, **kwargs), scale=scale), images(size)


def _deit() -> Built:
    return _timm("deit_tiny_patch16_224", 32, img_size=32, patch_size=8, depth=2, embed_dim=48)


def _torchvision_vit() -> Built:
    from torchvision.models import VisionTransformer

    return stirred(VisionTransformer(16, 4, 2, 4, 32, 48, num_classes=7), scale=5), images(16)


def _torchvision_swin() -> Built:
    from torchvision.models import SwinTransformer

    return stirred(SwinTransformer([2, 2], 12, [2, 2], [3, 4], [4, 4], num_classes=7), scale=5), images(32)


def _timm_swin() -> Built:
    sizes = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 12, "depths": (2, 2), "num_heads": (3, 4)}
    return _timm("swin_tiny_patch4_window7_224", 32, **sizes)


def _text(build: Callable[..., nn.Module], **changes: Any) -> Built:
    return build(num_hidden_layers=2, **changes), tiny.tiny_inputs("text")


def _segformer() -> Built:
    shape = {"hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 3, 4], "depths": [1, 1, 1, 1]}
    model = tiny._hf(
        "SegformerConfig", "SegformerForSemanticSegmentation", **shape, decoder_hidden_size=16, num_labels=5
    )
    return model, {"pixel_values": images(32).float()}


def _qwen2_moe() -> Built:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "mlp_only_layers": [1]}
    settings = {**tiny.TEXT, "num_hidden_layers": 2, "num_key_value_heads": 2, **experts}
    model = tiny._hf("Qwen2MoeConfig", "Qwen2MoeForCausalLM", **settings, shared_expert_intermediate_size=20)
    return model, tiny.tiny_inputs("text")


def _faster_rcnn() -> Built:
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None)
    net = FasterRCNN(backbone, num_classes=5, min_size=64, max_size=64, rpn_post_nms_top_n_test=20)
    return stirred(net), images(64, 1).sigmoid()


def _deeplab() -> Built:
    """On the third stage of a ResNet of five blocks."""
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.resnet import Bottleneck, ResNet
    from torchvision.models.segmentation.deeplabv3 import DeepLabHead, DeepLabV3

    backbone = ResNet(Bottleneck, [1, 2, 2, 1], replace_stride_with_dilation=[False, True, True])
    return stirred(DeepLabV3(IntermediateLayerGetter(backbone, {"layer3": "out"}), DeepLabHead(1024, 5))), images(32)


def _ssdlite() -> Built:
    """On the smaller MobileNetV3, for images of 96 x 96."""
    from torchvision.models import mobilenet_v3_small
    from torchvision.models.detection import _utils, ssdlite
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator

    norm = partial(nn.BatchNorm2d, eps=0.001, momentum=0.03)
    backbone = ssdlite._mobilenet_extractor(mobilenet_v3_small(reduced_tail=True), 6, norm)
    boxes = DefaultBoxGenerator([[2, 3]] * 6, min_ratio=0.2, max_ratio=0.95)
    channels = _utils.retrieve_out_channels(backbone, (96, 96))
    head = ssdlite.SSDLiteHead(channels, boxes.num_anchors_per_location(), 5, norm)
    return stirred(ssdlite.SSD(backbone, boxes, (96, 96), 5, head=head)), images(96, 1).sigmoid()


BUILD: dict[str, Callable[[], Built]] = {
    "option_a_resnet20": lambda: (stirred(CifarResNet()), images(16)),
    "bottlenecks": _bottlenecks,
    "resnext": lambda: _bottlenecks(groups=4, width_per_group=8),
    "vgg": _vgg,
    "densenet": _densenet,
    "mobilenet_v2": _mobilenet,
    "efficientnet": _efficientnet,
    "convnext": _convnext,
    "deit": _deit,
    "torchvision_vit": _torchvision_vit,
    "torchvision_swin": _torchvision_swin,
    "timm_swin": _timm_swin,
    "bert": lambda: _text(tiny.tiny_bert),
    "segformer": _segformer,
    "llama": lambda: _text(tiny.tiny_llama, num_key_value_heads=4),
    "llama_gqa": lambda: _text(tiny.tiny_llama),
    "llama_gqa_eager": lambda: _text(tiny.tiny_llama, attn_implementation="eager"),
    "qwen3": lambda: _text(tiny.tiny_qwen3),
    "opt": lambda: _text(tiny.tiny_opt),
    "gpt2": lambda: (tiny.tiny_gpt2(n_layer=2), tiny.tiny_inputs("text")),
    "qwen2_moe": _qwen2_moe,
}
LARGE: dict[str, Callable[[], Built]] = {
    "resnet50": lambda: _torchvision("resnet50", 64),
    "efficientnet_b0_timm": lambda: _timm("efficientnet_b0", 64, scale=1),
    "convnext_tiny_timm": lambda: _timm("convnext_tiny", 64),
    "deeplabv3": _deeplab,
    "faster_rcnn": _faster_rcnn,
    "ssdlite": _ssdlite,
}
