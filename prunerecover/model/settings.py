"""Settings of a model: numbers that shape what it computes and do not show in the shapes of its tensors.

Two models of equal names and shapes may divide a width into other heads, or move a convolution by another stride. Read
are attributes of modules by the names that PyTorch, timm and transformers give to such numbers; all others (dropout,
counters of training steps) may differ between a model and its plan. Not covered: which activation function a module
computes, and numbers in configs that no module repeats.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import nn

# What attention modules call the number of their heads.
HEADS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "heads")
KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
SETTINGS = frozenset(
    (*HEADS, *KEY_VALUE_HEADS, "num_key_value_groups", "head_dim", "attention_head_size", "window_size", "shift_size")
    + ("groups", "num_groups", "stride", "padding", "dilation", "kernel_size", "eps", "variance_epsilon")
    + ("top_k", "num_experts_per_tok")
)
REROUTED = "rerouted"  # calls that surgery took out of a module's forward
DIFFERENT = "various"


def alone(value: Any) -> Any:
    """Return the only entry of a tuple, such as `normalized_shape`; what is none, or has others, as it is.

    >>> alone((8,)), alone(8)
    (8, 8)
    """
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def like(value: Any, number: int) -> int | tuple[int]:
    """Return a number as a tuple if a value is one.

    >>> like((8,), 6), like(8, 6)
    ((6,), 6)
    """
    return (number,) if isinstance(value, tuple) else number


def settings_of(model: nn.Module) -> dict[str, str]:
    """Return the settings by name: the value if all modules that have it agree, else a hash of all of them.

    Device, dtype and mode do not count.

    >>> settings_of(nn.Sequential(nn.MaxPool2d(2), nn.GroupNorm(2, 4)))
    {'dilation': '1', 'eps': '1e-05', 'kernel_size': '2', 'num_groups': '2', 'padding': '0', 'stride': '2'}
    """
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path, module in model.named_modules():
        for name in (SETTINGS | {REROUTED}) & vars(module).keys():
            if _is_plain(value := vars(module)[name]):
                found[name][path] = str(value)
    return {name: _summary(values) for name, values in sorted(found.items())}


def differing_settings(expected: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Tell how two models' settings differ; names that only one of them has (another library version) do not count.

    Calls that were taken out of forwards count where only one of them lacks some.

    >>> differing_settings({"num_heads": "4", "eps": "1e-05"}, {"num_heads": "2"})
    'num_heads is 4 there, but 2 in this'
    """
    if expected and REROUTED in expected.keys() ^ found.keys():
        there, here = expected.get(REROUTED, "nothing"), found.get(REROUTED, "nothing")
        return f"{there} was taken out of forwards there, but {here} in this"
    return "; ".join(
        f"{name} is {value} there, but {found[name]} in this"
        for name, value in expected.items()
        if found.get(name, value) != value
    )


def data_hash(data: Any) -> str:
    """Hash JSON primitives, as they are once they were written and read."""
    return hashlib.sha256(json.dumps(json.loads(json.dumps(data)), sort_keys=True).encode()).hexdigest()


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(entry) for entry in value)
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _summary(values: Mapping[str, str]) -> str:
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return f"{DIFFERENT} ({data_hash(dict(values))[:12]})"
