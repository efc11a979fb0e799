"""Constructors of transformers models: the class name, the config, and the implementations of the parts.

A model of several parts (an encoder and a decoder, a detector on a backbone) has a config and implementations of
attention and experts for each part, for not every part has all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from torch import nn

# Config attribute and implementations without code to fetch, by the entry of a constructor.
IMPLEMENTATIONS = {
    "attention": ("_attn_implementation", ("eager", "sdpa")),
    "experts": ("_experts_implementation", ("eager", "grouped_mm", "batched_mm")),
}
# Entries of a transformers config that name code or weights to fetch.
REACHING_OUT = ("attn_implementation", "experts_implementation", "auto_map", "backbone", "use_pretrained_backbone")
OF_TIMM = "timm_backbone"  # type of a part built by timm by name
FLOAT = "__float__"  # key of infinity and NaN in JSON of transformers


def transformers_call(constructor: dict[str, Any]) -> Callable[[], nn.Module]:
    """Return the call that builds a transformers model.

    Raises:
        ValueError: If the name is no model class of transformers.
    """
    import transformers

    name = constructor["transformers"]
    cls = getattr(transformers, str(name), None)
    config_class = getattr(cls, "config_class", None)
    if config_class is None or not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise ValueError(
            f"Expected the name of a model class of transformers {transformers.__version__}, but got {name!r}. "
            "Is transformers too old?"
        )

    def make() -> nn.Module:
        config = config_from(config_class, _self_contained(constructor.get("config")))
        for entry, (attribute, known) in IMPLEMENTATIONS.items():
            if hasattr(config, attribute):
                setattr(config, attribute, _known(constructor.get(entry), known))
        model: nn.Module = cls(config)
        return model

    return make


def transformers_candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Yield the model's config, if the class belongs to transformers."""
    if not type(model).__module__.startswith("transformers."):
        return
    import transformers

    name = type(model).__name__
    if getattr(transformers, name, None) is type(model) and isinstance(model, transformers.PreTrainedModel):
        parts = {entry: _of_parts(model.config, *where) for entry, where in IMPLEMENTATIONS.items()}
        yield {"transformers": name, "config": _self_contained(config_data(model.config)), **parts}


def config_data(config: Any) -> dict[str, Any]:
    """Return all entries of a transformers config, after a round trip through JSON."""
    data: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return data


def config_from(cls: Any, data: Any) -> Any:
    """Return the config for the data of `config_data`."""
    return cls.from_dict(_with_floats(data))


def _with_floats(data: Any) -> Any:
    """Return JSON primitives with numbers in place of the stand-ins for infinity and NaN."""
    if isinstance(data, list):
        return [_with_floats(entry) for entry in data]
    if not isinstance(data, dict):
        return data
    if data.keys() == {FLOAT}:
        return float(data[FLOAT])
    return {key: _with_floats(value) for key, value in data.items()}


def _of_parts(config: Any, attribute: str, known: tuple[str, ...]) -> Any:
    """Return the implementation named by a config; with parts, a mapping by part, the config's own under ""."""
    own = _known(getattr(config, attribute, None), known)
    parts = {name: getattr(config, name, None) for name in getattr(config, "sub_configs", ())}
    named = {name: _of_parts(part, attribute, known) for name, part in parts.items() if hasattr(part, attribute)}
    return {"": own, **named} if named else own


def _known(implementation: Any, known: tuple[str, ...]) -> Any:
    """Return an implementation, or those of parts, with None in place of any to fetch."""
    if isinstance(implementation, dict):
        return {name: _known(part, known) for name, part in implementation.items()}
    return implementation if implementation in known else None


def _self_contained(config: Any) -> Any:
    """Drop references beyond the config, and private entries, at every level."""
    if isinstance(config, list):
        return [_self_contained(entry) for entry in config]
    if not isinstance(config, dict):
        return config
    kept = {
        key: _self_contained(value)
        for key, value in config.items()
        if key == FLOAT or (key not in REACHING_OUT and not str(key).startswith("_"))
    }
    if config.get("model_type") == OF_TIMM and _is_of_timm(config.get("backbone")):
        kept |= {"backbone": config["backbone"], "use_pretrained_backbone": False}
    return kept


def _is_of_timm(name: Any) -> bool:
    """Whether a name is in timm's registry; building by the name fetches no files."""
    if not isinstance(name, str) or not find_spec("timm"):
        return False
    import timm

    return bool(timm.is_model(name))
