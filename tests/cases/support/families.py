"""Rows of the support matrix: families of models, with a small model, a batch, and the expected results.

Columns neither in `works` nor in `refused` do not apply to a row: a ResNet has no attention heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from cases.depth.seeing import SEEING
from cases.models import decoders, tiny, width
from cases.models.width import Built
from torch.utils._pytree import tree_map

NO_UNITS = "... to have units of kind {kind} that may go, but there is none"
VARYING = "Expected an output of shape"
FIXED = "... to be removable, but"  # layers between widths that cannot change
GATED = "... to have removable activations, but its MLP is gated"
MIXED = "... to have removable activations, but its MLP is a mixture of experts"
NO_GROUPS = "... to have groups of kind {kind}, but it has"  # none at all, or those of other kinds
DEPTH = ("block", "attention", "mlp", "activation", "layer")


@dataclass(frozen=True)
class Family:
    """Row: the maker of a model and its batch, the working columns, and the errors of the refused ones."""

    library: str
    make: Callable[[], Built]
    works: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False  # in the fast suite

    def build(self) -> Built:
        """A dense model in single precision and evaluation mode, always of the same weights, and a batch."""
        torch.manual_seed(0)
        model, batch = self.make()
        return model.float().eval(), tree_map(lambda t: t.float() if t.is_floating_point() else t, batch)

    def reason(self, column: str) -> str | None:
        """Words of a column's error; "" where it works, None where it does not apply."""
        return "" if column in self.works else self.refused.get(column)

    def is_expected(self, column: str, message: str) -> bool:
        """Whether a column with this error message, or with none (""), matches the row."""
        reason = self.reason(column)
        return reason is not None and (reason.removeprefix("... ") in message if reason else not message)


def _refused(reason: str, *columns: str) -> dict[str, str]:
    return {column: reason.format(kind=column) for column in columns}


BLOCKS, NARROW = "from_pretrained, fewer blocks", "from_pretrained, fewer neurons or experts"
NO_LAYER = NO_UNITS.format(kind="layer")
IN_DEPTH = (*DEPTH, "head", "neuron", "hidden")
STANDARD = (BLOCKS, NARROW)
NO_CHANNELS = _refused(NO_GROUPS, "channel")


def _decoder(name: str, gated: bool = False, heads: bool = True, narrow: bool = True, quick: bool = False) -> Family:
    """`narrow`: whether the config follows a smaller number of neurons in all layers."""
    refused = NO_CHANNELS | (_refused(GATED, "activation") if gated else {})
    refused |= {} if heads else _refused(NO_GROUPS, "head")
    standard = STANDARD if narrow else (BLOCKS,)
    works = tuple(column for column in (*IN_DEPTH, *standard) if column not in refused)
    build = tiny.BUILD[name] if name in tiny.BUILD else decoders.DECODERS[name].build
    make: Callable[[], Built] = lambda: (build(), tiny.tiny_inputs(name))  # noqa: E731
    return Family("transformers", make, works, refused, quick)


def _mixture(name: str, *works: str, known: bool = False, layer: str = FIXED, quick: bool = False) -> Family:
    """Return a row; `known`: whether a record describes the family, `layer`: reason for refusing layers."""
    refused = _refused(MIXED if known else NO_UNITS, "activation") | NO_CHANNELS | {"layer": layer}
    works = (*works, "block", "attention", "mlp", BLOCKS)
    refused |= _refused(NO_GROUPS, *(kind for kind in ("head", "neuron", "hidden") if kind not in works))
    build = partial(tiny.tiny_mixture, name) if name in tiny.MIXTURES else decoders.DECODERS[name].build
    make: Callable[[], Built] = lambda: (build(), tiny.tiny_inputs("text"))  # noqa: E731
    return Family("transformers", make, (*works, "expert", NARROW), refused, quick)


def _seeing(name: str) -> Family:
    """Return a row of a vision-language model, on texts with images."""
    make: Callable[[], Built] = lambda: (SEEING[name].build(), SEEING[name].batch())  # noqa: E731
    refused = NO_CHANNELS | _refused(GATED, "activation") | _refused(NO_GROUPS, "hidden")  # features are an output, too
    works = tuple(column for column in (*IN_DEPTH, *STANDARD) if column not in refused)
    return Family("transformers", make, works, refused)


def _convolutional(
    name: str, *works: str, refused: tuple[str, ...] = (), why: str = NO_UNITS, quick: bool = False
) -> Family:
    make = {**width.BUILD, **width.LARGE}[name]
    library = "plain PyTorch" if name == "option_a_resnet20" else "torchvision"
    return Family(library, make, works, _refused(why, *refused), quick)


def _transformer(library: str, name: str, *works: str) -> Family:
    missing = ("block", "activation") if name == "segformer" else ()
    units = tuple(kind for kind in DEPTH if kind not in missing)
    refused = _refused(NO_UNITS, *(kind for kind in DEPTH if kind not in units))
    refused |= _refused(NO_GROUPS, *(kind for kind in ("channel", "head", "hidden") if kind not in works))
    return Family(library, width.BUILD[name], (*units, *works), refused)


def _vit(distilled: bool) -> Family:
    make: Callable[[], Built] = lambda: (tiny.tiny_timm(distilled=distilled), tiny.tiny_images())  # noqa: E731
    return Family("timm", make, (*IN_DEPTH, "ONNX"), NO_CHANNELS, quick=not distilled)


FAMILIES: dict[str, Family] = {
    "ViT, DeiT": _vit(distilled=False),
    "DeiT, distilled": _vit(distilled=True),
    "Llama": _decoder("llama", gated=True, quick=True),
    "Mistral": _decoder("mistral", gated=True),
    "Qwen2": _decoder("qwen2", gated=True),
    "Qwen3": _decoder("qwen3", gated=True),
    "GPT-2": _decoder("gpt2"),
    "OPT": _decoder("opt"),
    "OPT, norms after the sum (350m)": _decoder("opt_post_norm"),
    "BERT": _decoder("bert"),
    "ViT of transformers": _decoder("hf_vit"),
    "Gemma": _decoder("gemma", gated=True),
    "Gemma 2": _decoder("gemma2", gated=True),
    "Gemma 3": _decoder("gemma3", gated=True),
    "Phi": _decoder("phi"),
    "Phi-3": _decoder("phi3", gated=True, heads=False, narrow=False),
    "GPT-NeoX": _decoder("gpt_neox", narrow=False),
    "GPT-NeoX, branches in turn": _decoder("gpt_neox_in_turn", narrow=False),
    "SmolLM3": _decoder("smollm3", gated=True),
    "OLMo": _decoder("olmo", gated=True),
    "OLMo 2": _decoder("olmo2", gated=True),
    "OLMo 3": _decoder("olmo3", gated=True),
    "Granite": _decoder("granite", gated=True),
    "Starcoder2": _decoder("starcoder2", narrow=False),
    "Cohere": _decoder("cohere", gated=True),
    "Cohere2": _decoder("cohere2", gated=True),
    "StableLM": _decoder("stablelm", gated=True),
    "StableLM, branches in parallel": _decoder("stablelm_parallel", gated=True),
    "Mixtral": _mixture("mixtral", "head", known=True, layer=NO_LAYER, quick=True),
    "Qwen2-MoE": _mixture("qwen2_moe", "head", "neuron", known=True),
    "Qwen3-MoE": _mixture("qwen3_moe", "head", known=True, layer=NO_LAYER),
    "gpt-oss": _mixture("gpt_oss", "head", known=True, layer=NO_LAYER),
    "DeepSeek-V2": _mixture("deepseek_v2", "neuron"),
    "DeepSeek-V2, experts in groups": _mixture("deepseek_v2_grouped", "neuron"),
    "DeepSeek-V3": _mixture("deepseek_v3", "neuron"),
    "LLaVA": _seeing("llava"),
    "PaliGemma": _seeing("paligemma"),
    "Qwen2.5-VL": _seeing("qwen2_5_vl"),
    "SmolVLM": _seeing("smolvlm"),
    "ViT of torchvision": _transformer("torchvision", "torchvision_vit", "head", "neuron", "hidden", "ONNX"),
    "Swin of torchvision": _transformer("torchvision", "torchvision_swin", "head", "neuron", "hidden", "ONNX"),
    "Swin of timm": _transformer("timm", "timm_swin", "head", "neuron", "hidden", "ONNX"),
    "SegFormer": _transformer("transformers", "segformer", "channel", "head", "neuron", "hidden"),
    "CIFAR ResNet, option A": _convolutional("option_a_resnet20", "block", "layer", "channel", "ONNX", quick=True),
    "ResNet": _convolutional("bottlenecks", "block", "layer", "channel", "ONNX"),
    "ResNeXt": _convolutional("resnext", "block", "layer", "channel", "ONNX"),
    "VGG": _convolutional("vgg", "layer", "channel", "neuron", "ONNX", refused=("block",)),
    "DenseNet": _convolutional("densenet", "layer", "channel", "ONNX", refused=("block",)),
    "MobileNetV2": _convolutional("mobilenet_v2", "block", "layer", "channel", "ONNX"),
    "EfficientNet": _convolutional("efficientnet", "block", "layer", "channel", "ONNX"),
    "ConvNeXt": _convolutional(
        "convnext", "block", "activation", "layer", "channel", "neuron", "ONNX", refused=("mlp",), quick=True
    ),
    "DeepLabV3": _convolutional("deeplabv3", "block", "layer", "channel", "ONNX"),
    "Faster R-CNN": _convolutional("faster_rcnn", "channel", refused=("block", "layer"), why=VARYING),
    "SSDLite": _convolutional("ssdlite", "block", "layer", "channel"),
}
