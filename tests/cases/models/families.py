"""Families with groups of width, in single precision, and loading in a separate process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases.models.width import BUILD, LARGE, Built
from cases.width.groups import outputs
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from prunerecover import Plan, load_pruned

FAMILIES = {
    "option-A ResNet-20": "option_a_resnet20",
    "VGG": "vgg",
    "MobileNetV2": "mobilenet_v2",
    "ConvNeXt": "convnext",
    "torchvision ViT": "torchvision_vit",
    "HF BERT": "bert",
    "HF Llama MHA": "llama",
    "Qwen2-MoE": "qwen2_moe",
    "Faster R-CNN": "faster_rcnn",
}


def family(name: str) -> Built:
    """Return a dense model in single precision, and a batch for it; for a detector a list of images."""
    torch.manual_seed(0)
    model, inputs = {**BUILD, **LARGE}[FAMILIES[name]]()
    inputs = ([*inputs],) if name == "Faster R-CNN" else inputs
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
