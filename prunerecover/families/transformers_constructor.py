"""Constructors of transformers models: the name of the class, its config, and the implementation of attention."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from prunerecover.families.transformers_layers import is_transformers_model

ATTENTIONS = ("eager", "sdpa")
# What a transformers config may name that is not in the config: code and weights to fetch.
REACHING_OUT = ("attn_implementation", "experts_implementation", "auto_map", "backbone", "use_pretrained_backbone")


def transformers_call(constructor: dict[str, Any]) -> Callable[[], nn.Module]:
    """Return the call that builds a transformers model.

    Raises:
        ValueError: If it is not the name of a model's class.
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
    attention = constructor.get("attention")
    settings = {"attn_implementation": attention if attention in ATTENTIONS else None}
    return lambda: cls(config_class.from_dict(_self_contained(constructor.get("config")), **settings))


def transformers_candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Yield the model's config, if its class is one that transformers itself has."""
    if not is_transformers_model(model):
        return
    import transformers

    name = type(model).__name__
    if getattr(transformers, name, None) is type(model):
        config = _self_contained(json.loads(model.config.to_json_string(use_diff=False)))
        attention = getattr(model.config, "_attn_implementation", None)
        yield {"transformers": name, "config": config, "attention": attention if attention in ATTENTIONS else None}


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
