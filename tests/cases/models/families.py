"""Families with groups of width, in single precision, and loading in a separate process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases.models.width import BUILD, LARGE, Built, images
from cases.width.groups import outputs
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from prunerecover import Plan, load_pruned

FAMILIES = {
    "option-A ResNet-20": "option_a_resnet20",
    "ResNet-50": "resnet50",
    "VGG16-BN": "vgg16_bn",
    "DenseNet-121": "densenet121",
    "MobileNetV2": "mobilenet_v2_full",
    "EfficientNet-B0": "efficientnet_b0",
    "ConvNeXt-Tiny": "convnext_tiny",
    "timm DeiT-Tiny": "deit_tiny",
    "torchvision ViT": "torchvision_vit",
    "Swin-T": "swin_t",
    "HF BERT": "bert",
    "HF SegFormer": "segformer",
    "HF Llama MHA": "llama",
    "HF Llama GQA": "llama_gqa",
    "Qwen2-MoE": "qwen2_moe",
    "torchvision DeepLabV3": "deeplabv3",
    "Faster R-CNN": "faster_rcnn",
    "SSDLite": "ssdlite",
}
SIZES = {"Swin-T": 128}  # on smaller images attention, whose windows are padded, takes more than 70% of the MACs


DETECTORS = ("Faster R-CNN", "SSDLite")


def family(name: str) -> Built:
    """Return a dense model in single precision, and a batch for it; for detectors a list of images."""
    torch.manual_seed(0)
    model, inputs = {**BUILD, **LARGE}[FAMILIES[name]]()
    inputs = images(SIZES[name]) if name in SIZES else inputs
    inputs = ([*inputs],) if name in DETECTORS else inputs
    return model.float(), tree_map(lambda t: t.float() if t.is_floating_point() else t, inputs)


def squares(model: nn.Module, batch: Any) -> Tensor:
    """Return a loss for any family, over all outputs."""
    return torch.stack([t.float().square().mean() for t in outputs(model, batch) if t.is_floating_point()]).sum()


def reloaded(name: str, folder: Path) -> list[np.ndarray]:
    """Return the outputs of a saved family; if the plan cannot build it, from a dense model with other weights."""
    model, inputs = family(name)
    torch.nn.utils.vector_to_parameters(torch.zeros(sum(p.numel() for p in model.parameters())), model.parameters())
    rebuilt = Plan.load(folder / "plan.json").source.constructor is not None
    with torch.no_grad():
        return [t.numpy() for t in outputs(load_pruned(folder, None if rebuilt else model), inputs)]
