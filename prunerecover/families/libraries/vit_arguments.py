"""Constructor arguments of a timm VisionTransformer, read off its parts."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def as_json(value: Any) -> Any:
    """Return a value as in JSON: tuples are lists."""
    return list(value) if isinstance(value, tuple) else value


def vit_arguments(model: Any) -> dict[str, Any]:
    """Return the arguments of a VisionTransformer, read off its parts; unknown arguments are left out."""
    embed, block = model.patch_embed, model.blocks[0]
    attention = next((module for module in block.modules() if hasattr(module, "num_heads")), None)
    mlp = next((module for module in block.modules() if hasattr(module, "fc1")), None)
    found = {
        "num_classes": getattr(model, "num_classes", None),
        "in_chans": getattr(getattr(embed, "proj", None), "in_channels", None),
        "img_size": as_json(getattr(embed, "img_size", None)),
        "patch_size": as_json(getattr(embed, "patch_size", None)),
        "depth": len(model.blocks),
        "global_pool": getattr(model, "global_pool", None),
        "embed_dim": getattr(model, "embed_dim", None),
        "class_token": getattr(model, "cls_token", None) is not None,
        "pos_embed": "none" if getattr(model, "pos_embed", None) is None else None,
        "no_embed_class": getattr(model, "no_embed_class", None),
        "reg_tokens": getattr(model, "num_reg_tokens", None),
        "pool_include_prefix": getattr(model, "pool_include_prefix", None),
        "dynamic_img_size": getattr(model, "dynamic_img_size", None),
        "dynamic_img_pad": getattr(embed, "dynamic_img_pad", None),
        "pre_norm": _is_there(model, "norm_pre"),
        "final_norm": _is_there(model, "norm") or _is_there(model, "fc_norm"),
        "fc_norm": _is_there(model, "fc_norm"),
        "init_values": getattr(getattr(block, "ls1", None), "init_values", 1e-5) if _is_there(block, "ls1") else None,
        "scale_attn_norm": _is_there(attention, "norm"),
        "scale_mlp_norm": _is_there(mlp, "norm"),
        "qk_norm": _is_there(attention, "q_norm"),
        "num_heads": getattr(attention, "num_heads", None),
        "qkv_bias": _has_bias(attention, "qkv"),
        "proj_bias": _has_bias(attention, "proj"),
        "mlp_ratio": _mlp_ratio(mlp, getattr(model, "embed_dim", 1)),
        "act_layer": _word(getattr(mlp, "act", None), nn.GELU),
        "norm_layer": _word(getattr(block, "norm1", None), nn.LayerNorm),
        **_rates(model, attention),
    }
    return {name: value for name, value in found.items() if value is not None}


def _rates(model: Any, attention: Any) -> dict[str, float | None]:
    return {
        "drop_rate": getattr(getattr(model, "head_drop", None), "p", None),
        "pos_drop_rate": getattr(getattr(model, "pos_drop", None), "p", None),
        "patch_drop_rate": getattr(getattr(model, "patch_drop", None), "prob", None),
        "proj_drop_rate": getattr(getattr(attention, "proj_drop", None), "p", None),
        "attn_drop_rate": getattr(getattr(attention, "attn_drop", None), "p", None),
        "drop_path_rate": getattr(getattr(model.blocks[-1], "drop_path1", None), "drop_prob", None),
    }


def _is_there(parent: Any, name: str) -> bool:
    return not isinstance(getattr(parent, name, None), nn.Identity | None)


def _has_bias(parent: Any, name: str) -> bool | None:
    linear = getattr(parent, name, None)
    return isinstance(linear.bias, Tensor) if isinstance(linear, nn.Linear) else None


def _mlp_ratio(mlp: Any, width: int) -> float | None:
    hidden = getattr(getattr(mlp, "fc1", None), "out_features", None)
    if hidden is None:
        return None
    ratio = float(hidden / width)
    return ratio if int(width * ratio) == hidden else float((hidden + 0.5) / width)


def _word(layer: nn.Module | None, default: type[nn.Module]) -> str | None:
    """Guess timm's word for a layer class; None for the default class."""
    return None if layer is None or type(layer) is default else type(layer).__name__.lower()
