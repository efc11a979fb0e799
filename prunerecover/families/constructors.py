"""Constructors of dense models as plain data: timm's name and arguments, or a transformers class and config.

Only these two libraries' own constructors are ever called, and those that a module which is imported already has
registered with timm (such as `cifar_resnet20` of the recipes), with arguments that shape a network and nothing else (no
file, address, checkpoint or code can be named), so a file can neither execute nor fetch anything. Neither library keeps
the arguments of a model for good: they are read off the model, and returned only if building from them gives the same
model but for the values of parameters. Not covered: layers handed in as classes, networks that run a backbone while
they are built (timm's hybrid ViTs), models of other libraries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from prunerecover.families.transformers_layers import is_transformers_model
from prunerecover.families.vit_arguments import as_json, vit_arguments
from prunerecover.model.hashing import tensors_hash
from prunerecover.model.replacements import Replacement, SlopeBias

GENERIC = {
    "VisionTransformer": "vit_base_patch16_224",
    "VisionTransformerDistilled": "deit_base_distilled_patch16_224",
}
LAYERS = ("act_layer", "norm_layer")
COMMON = ("num_classes", "in_chans", "img_size", "drop_rate", "drop_path_rate")
ARGUMENTS = frozenset(
    {
        *COMMON,
        *LAYERS,
        "patch_size",
        "global_pool",
        "embed_dim",
        "depth",
        "num_heads",
        "mlp_ratio",
        "qkv_bias",
        "qk_norm",
    }
    | {"scale_attn_norm", "scale_mlp_norm", "proj_bias", "init_values", "class_token", "pos_embed", "no_embed_class"}
    | {"reg_tokens", "pre_norm", "final_norm", "fc_norm", "pool_include_prefix", "dynamic_img_size", "dynamic_img_pad"}
    | {"pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate"}
)
ATTENTIONS = ("eager", "sdpa")
COUNTS = ("depth", "layer", "block", "expert")  # in names of numbers that say how many modules there are
MOST_MODULES, LARGEST_NUMBER = 2**12, 2**31
# What a transformers config may name that is not in the config: code and weights to fetch.
REACHING_OUT = ("attn_implementation", "experts_implementation", "auto_map", "backbone", "use_pretrained_backbone")
INITIALISING = frozenset({"uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_", "fill_", "zero_"})
# Attributes that do not change what a model computes in evaluation mode.
BYSTANDERS = frozenset(
    {"training", "init_values", "fused_attn", "grad_checkpointing", "gradient_checkpointing", "distilled_training"}
    | {"weight_init_mode", "fix_init", "name_or_path", "loss_type"}
)


def constructor_of(model: nn.Module) -> dict[str, Any] | None:
    """Return the data that `build` needs to make this dense model again, or None if it is not known.

    Args:
        model: Unwrapped, on any device; it is not changed, nor is the random state.

    Returns:
        JSON primitives. Building from them was tried: the result has the same text (`repr`), plain attributes (heads,
        scales, pooling), names, shapes, and buffers that no checkpoint holds.
    """
    if any(isinstance(module, Replacement | SlopeBias) for module in model.modules()):
        return None
    if is_transformers_model(model):
        candidates = _transformers_candidates(model)
    elif type(model).__module__.startswith("timm.") or isinstance(vars(model).get("pretrained_cfg"), dict):
        candidates = _timm_candidates(model)
    else:
        return None
    outline = _Outline.of(model)
    return next((candidate for candidate in candidates if _makes(candidate, outline)), None)


def build(constructor: dict[str, Any]) -> nn.Module:
    """Build the dense model with parameters on the meta device and buffers in memory; tied parameters are tied.

    Raises:
        ValueError: If the data names anything but a timm model or a transformers class with arguments that shape it.
    """
    if not {"timm", "transformers"} & constructor.keys():
        raise ValueError(
            f"Expected a constructor of timm or transformers, but got {sorted(constructor)}. "
            "Build the dense model yourself and pass it: load_pruned(path, model)."
        )
    if not isinstance(constructor.get("kwargs") or {}, dict):
        raise ValueError(
            f"Expected the arguments of a constructor by name, but got {str(constructor['kwargs'])[:60]}. Was the plan "
            "edited? Build the dense model yourself and pass it: load_pruned(path, model)."
        )
    _check_counts(constructor)
    make = _timm_call(constructor) if "timm" in constructor else _transformers_call(constructor)
    try:
        return _on_meta(make)
    except Exception as error:
        what = constructor.get("timm") or constructor.get("transformers")
        raise ValueError(
            f"Expected the installed timm or transformers to build '{what}', but it failed: {error}. "
            "Install the version that the plan was made with, or build the dense model and pass it."
        ) from error


def is_described_by_config(model: Any) -> bool:
    """Whether a transformers model, also of an own class, is what its class builds from its config.

    Compared are the text (`repr`) and the names and shapes of all tensors: what `from_pretrained` has to go by.
    """
    try:
        settings = json.loads(model.config.to_json_string(use_diff=False))
        built = _on_meta(lambda: type(model)(type(model.config).from_dict(settings)))
    except Exception:  # a class of the user's own may take more than a config
        return False
    return repr(built) == repr(model) and tensors_hash(built) == tensors_hash(model)


def _on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """Build a model with parameters on the meta device and buffers in memory; the random state stays as it is."""
    from accelerate import init_empty_weights  # type: ignore[import-untyped]

    with torch.random.fork_rng(devices=[]), init_empty_weights(include_buffers=False), _NoInitialisation():
        model = make()
    tie = getattr(model, "tie_weights", None)
    if callable(tie):  # making the parameters meta parted those that were one
        tie()
    return model


def _check_counts(data: Any, name: str = "") -> None:
    """Refuse numbers with which building would never end, or fill the memory."""
    if isinstance(data, dict):
        for key, value in data.items():
            _check_counts(value, str(key))
    elif isinstance(data, list | tuple):
        for value in data:
            _check_counts(value, name)
    elif isinstance(data, int):
        counts = any(word in name for word in COUNTS) and not name.endswith(("size", "dim"))
        most = MOST_MODULES if counts else LARGEST_NUMBER
        if abs(data) > most:
            raise ValueError(
                f"Expected a constructor of a network that can be built, but got {name}={data!r:.40} (at most {most}). "
                "Was the plan edited? If not, build the dense model yourself and pass it: load_pruned(path, model)."
            )


class _NoInitialisation(TorchFunctionMode):
    """Skip drawing values for parameters on the meta device: it has no result there, and takes most of the time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the tensor as it is, or run anything else."""
        written = args[0] if args else (kwargs or {}).get("tensor")
        if getattr(func, "__name__", "") in INITIALISING and isinstance(written, Tensor) and written.is_meta:
            return written
        return func(*args, **(kwargs or {}))


def _timm_call(constructor: dict[str, Any]) -> Callable[[], nn.Module]:
    import timm

    name, kwargs = constructor["timm"], dict(constructor.get("kwargs") or {})
    if not isinstance(name, str) or not timm.is_model(name):
        raise ValueError(
            f"Expected the name of a model of timm {timm.__version__}, but got {name!r}. Is timm too old, or was the "
            "module that registers it not imported yet?"
        )
    odd = sorted(str(key) for key, value in kwargs.items() if key not in ARGUMENTS or not _is_plain(value))
    if odd:
        raise ValueError(
            f"Expected only arguments that shape '{name}', as numbers and words, but got {', '.join(odd)}. "
            "Build the dense model yourself and pass it: load_pruned(path, model)."
        )
    return partial(timm.create_model, name, pretrained=False, **kwargs)


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str) or (
        isinstance(value, list | tuple) and all(isinstance(v, bool | int | float) for v in value)
    )


def _transformers_call(constructor: dict[str, Any]) -> Callable[[], nn.Module]:
    import transformers

    name = constructor["transformers"]
    cls = getattr(transformers, str(name), None)
    config_class = getattr(cls, "config_class", None)
    if config_class is None or not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise ValueError(
            f"Expected the name of a model class of transformers {transformers.__version__}, but got {name!r}. "
            "Is transformers too old?"
        )
    attention = constructor.get("attention")
    settings = {"attn_implementation": attention if attention in ATTENTIONS else None}
    return lambda: cls(config_class.from_dict(_self_contained(constructor.get("config")), **settings))


def _self_contained(config: Any) -> Any:
    """Drop what would reach out of the config, and private entries, at every level."""
    if isinstance(config, list):
        return [_self_contained(entry) for entry in config]
    if not isinstance(config, dict):
        return config
    return {
        key: _self_contained(value)
        for key, value in config.items()
        if key not in REACHING_OUT and not str(key).startswith("_")
    }


@dataclass(frozen=True)
class _Outline:
    """What two models made by one constructor have in common."""

    text: str
    tensors: str
    attributes: list[dict[str, Any]]
    tables: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> _Outline:
        held = model.state_dict()
        tables = {name: buffer for name, buffer in model.named_buffers() if name not in held}
        return cls(repr(model), tensors_hash(model), _plain_attributes(model), tables)


@lru_cache(maxsize=32)
def _outline(constructor: str, dtype: torch.dtype) -> _Outline:
    """Outline what this JSON builds under this default dtype; kept, since a search describes one model many times."""
    return _Outline.of(build(json.loads(constructor)))


def _makes(constructor: dict[str, Any], own: _Outline) -> bool:
    """Whether building from `constructor` gives a model like the one that is outlined."""
    try:
        built = _outline(json.dumps(constructor), torch.get_default_dtype())
    except Exception:  # a guess may fail in any way; then it is not the constructor
        return False
    alike = (built.text, built.tensors, built.attributes) == (own.text, own.tensors, own.attributes)
    return alike and all(_same_table(built.tables.get(name), table) for name, table in own.tables.items())


def _plain_attributes(model: nn.Module) -> list[dict[str, Any]]:
    """Numbers, words and tuples on every module, which `repr` leaves out."""
    return [
        {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, bool | int | float | str | tuple) and name not in BYSTANDERS and name[0] != "_"
        }
        for module in model.modules()
    ]


def _same_table(built: Tensor | None, own: Tensor) -> bool:
    """Whether a buffer that no state dict holds (a rotary table) is the one that is built; on meta, nobody can tell."""
    if own.is_meta:
        return True
    return built is not None and not built.is_meta and torch.equal(built.to(own.dtype), own.cpu())


def _transformers_candidates(model: Any) -> Iterator[dict[str, Any]]:
    import transformers

    name = type(model).__name__
    if getattr(transformers, name, None) is type(model):
        config = _self_contained(json.loads(model.config.to_json_string(use_diff=False)))
        attention = getattr(model.config, "_attn_implementation", None)
        yield {"transformers": name, "config": config, "attention": attention if attention in ATTENTIONS else None}


def _timm_candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Guess from the shortest arguments to the longest; what newer timm keeps of a call comes early."""
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
