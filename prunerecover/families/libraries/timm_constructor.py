"""Constructors of timm models: the name in timm's registry, and arguments that shape a network only.

timm does not keep the arguments of a call: arguments are read off the model, shortest guess first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import nn

from prunerecover.families.libraries.vit_arguments import as_json, vit_arguments

GENERIC = {
    "VisionTransformer": "vit_base_patch16_224",
    "VisionTransformerDistilled": "deit_base_distilled_patch16_224",
}
LAYERS = ("act_layer", "norm_layer")
COMMON = ("num_classes", "in_chans", "img_size", "drop_rate", "drop_path_rate")
ARGUMENTS = frozenset(
    {*COMMON, *LAYERS, "patch_size", "global_pool", "embed_dim", "depth", "num_heads", "mlp_ratio", "qkv_bias"}
    | {"qk_norm", "scale_attn_norm", "scale_mlp_norm", "proj_bias", "init_values", "class_token", "pos_embed"}
    | {"reg_tokens", "pre_norm", "final_norm", "fc_norm", "pool_include_prefix", "dynamic_img_size", "dynamic_img_pad"}
    | {"no_embed_class", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate"}
)


def timm_call(constructor: dict[str, Any]) -> Callable[[], nn.Module]:
    """Return the call that builds a timm model.

    Raises:
        ValueError: If the name is no timm model, or an argument does more than shape the network.
    """
    import timm

    name, kwargs = constructor["timm"], dict(constructor.get("kwargs") or {})
    check_call(timm, name, isinstance(name, str) and timm.is_model(name), kwargs, ARGUMENTS)
    return partial(timm.create_model, name, pretrained=False, **kwargs)


def check_call(library: Any, name: Any, is_known: bool, kwargs: dict[str, Any], arguments: frozenset[str]) -> None:
    """Raise ValueError unless a name and all arguments are known, and these are numbers, words or lists of numbers."""
    if not is_known:
        raise ValueError(
            f"Expected the name of a model of {library.__name__} {library.__version__}, but got {name!r}. Is "
            f"{library.__name__} too old, or was the module that registers it not imported yet?"
        )
    odd = sorted(str(key) for key, value in kwargs.items() if key not in arguments or not _is_plain(value))
    if odd:
        raise ValueError(
            f"Expected only arguments that shape '{name}', as numbers and words, but got {', '.join(odd)}. "
            "Build the dense model yourself and pass it: load_pruned(path, model)."
        )


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str) or (
        isinstance(value, list | tuple) and all(isinstance(v, bool | int | float) for v in value)
    )


def timm_candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Yield guesses from the shortest arguments to the longest; arguments kept by newer versions of timm come early."""
    if not type(model).__module__.startswith("timm.") and not isinstance(vars(model).get("pretrained_cfg"), dict):
        return
    architecture = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
    generic = GENERIC.get(type(model).__name__)
    is_vit = "VisionTransformer" in {cls.__name__ for cls in type(model).__mro__} and len(model.blocks)
    shape = vit_arguments(model) if is_vit else {"num_classes": getattr(model, "num_classes", None)}
    call = {name: as_json(value) for name, value in (getattr(model, "_model_args", None) or {}).items()}
    common = {name: shape[name] for name in COMMON if name in shape}
    sizes = {name: value for name, value in shape.items() if name not in LAYERS}
    for name in dict.fromkeys(filter(None, (architecture, generic))):
        tried: list[dict[str, Any]] = []
        for kwargs in ({}, call, common, sizes, shape):
            if kwargs not in tried:
                tried.append(kwargs)
                yield {"timm": name, "kwargs": kwargs}
