"""Attributes of modules: settings, which shape what a network computes, and traces of its use, which forward writes.

*Settings* are numbers that do not show in the shapes of tensors. Two models of equal names and shapes may divide a
width into other heads, or move a convolution by another stride. Read are attributes of modules by the names that
PyTorch, timm and transformers give to such numbers; all others (dropout, counters of training steps) may differ between
a model and its plan. Not covered: which activation function a module computes, and numbers in configs that no module
repeats.

*Use* is what a forward writes on its modules, which says nothing about how they were built. Swin gives stages that are
as small as a window no shift, RWKV divides its weights for evaluation and notes that it did, mixtures of experts note
their capacity, YOLO the last shape. The names are read off the bytecode of what `forward` calls. Plain data under them
belongs to the weights, like a buffer, and is saved with them. Not covered: what functions outside of the network's
classes write, and `setattr`.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
from torch import nn

from prunerecover.files.in_short import in_short

# What attention modules call the number of their heads.
HEADS = ("num_heads", "num_attention_heads", "num_head", "n_head", "n_heads", "nhead", "nheads", "heads")
SHORT_HEADS = ("h", "nh")  # which may be heights elsewhere
KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
SETTINGS = frozenset(
    (*HEADS, *SHORT_HEADS, *KEY_VALUE_HEADS, "num_key_value_groups", "head_dim", "attention_head_size")
    + (
        "window_size",
        "shift_size",
        "groups",
        "num_groups",
        "stride",
        "padding",
        "dilation",
        "kernel_size",
        "eps",
        "variance_epsilon",
    )
    + ("top_k", "num_experts_per_tok")
)
REROUTED = "rerouted"  # calls that surgery took out of a module's forward
DIFFERENT = "various"
SHOWN = 3
MODE = "training"  # written by `train` and `eval`

Use = dict[str, dict[str, Any]]


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
    names = (SETTINGS | {REROUTED}) - written_by_forward(model)
    for path, module in model.named_modules():
        for name in names & vars(module).keys():
            if _is_setting(value := vars(module)[name]):
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
    told = [
        f"{name} is {in_short(value)} there, but {in_short(found[name])} in this"
        for name, value in expected.items()
        if found.get(name, value) != value
    ]
    return "; ".join(told[:SHOWN]) + (f"; and {len(told) - SHOWN} more" if len(told) > SHOWN else "")


def data_hash(data: Any) -> str:
    """Hash JSON primitives, as they are once they were written and read."""
    return hashlib.sha256(json.dumps(json.loads(json.dumps(data)), sort_keys=True).encode()).hexdigest()


def written_by_forward(model: nn.Module) -> frozenset[str]:
    """Return the names of attributes that the forward of a network, or what it calls, assigns to.

    >>> class Counts(nn.Module):
    ...     def forward(self, x):
    ...         return self.count(x)
    ...     def count(self, x):
    ...         self.seen = len(x)
    ...         return x
    >>> sorted(written_by_forward(nn.Sequential(Counts())))
    ['seen']
    """
    return _written_in(frozenset(base for module in model.modules() for base in type(module).__mro__))


def use_of(model: nn.Module) -> Use:
    """Return what forward has left on the modules of a network, as JSON primitives by path and name.

    A module that also keeps tensors or objects from call to call, such as YOLO's anchors, has no part in it: its plain
    data would not fit to them.
    """
    names, found = written_by_forward(model), Use()
    for path, module in model.named_modules():
        own = {name: vars(module)[name] for name in sorted(names & vars(module).keys())}
        own = {name: value for name, value in own.items() if not isinstance(value, torch.dtype | torch.device)}
        if own and all(map(is_plain, own.values())):
            found[path] = own
    return found


def restore_use(model: nn.Module, use: Mapping[str, Any]) -> None:
    """Put back what `use_of` has returned for a network of this structure; nothing else is ever written.

    Args:
        model: Built anew.
        use: Of a file that anybody may have written: what `use_of` would not have returned is left out.
    """
    for path, own in use_of(model).items():
        found = use.get(path)
        given = found if isinstance(found, Mapping) else {}
        for name in own.keys() & given.keys():
            if is_plain(value := as_tuples(given[name])):
                setattr(model.get_submodule(path), name, value)


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a word, nothing, or a tuple of such."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def as_tuples(value: Any) -> Any:
    """Return a value with tuples in the place of lists, as JSON has none."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def _is_setting(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_setting(entry) for entry in value)
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _summary(values: Mapping[str, str]) -> str:
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return f"{DIFFERENT} ({data_hash(dict(values))[:12]})"


@lru_cache(maxsize=128)
def _written_in(classes: frozenset[type]) -> frozenset[str]:
    own = [cls for cls in classes if cls not in (nn.Module, object)]
    written, seen, names = set[str](), set[str](), {"forward"}
    while names:
        seen |= names
        codes = [code for cls in own for name in names & vars(cls).keys() for code in _codes(vars(cls)[name])]
        for code in codes:
            written |= {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}
        names = {name for code in codes for name in code.co_names} - seen
    return frozenset(written - {MODE})


def _codes(member: Any) -> Iterator[CodeType]:
    """Yield the code of a method or property, and of the functions in it."""
    function = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", None) or member)
    found = [getattr(function, "__code__", None)]
    while found:
        code = found.pop()
        if isinstance(code, CodeType):
            yield code
            found += code.co_consts
