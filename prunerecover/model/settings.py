"""Attributes of modules: settings, which shape the computation, and traces of use, which forward writes.

*Settings* are numbers that no tensor shape shows. Two models of equal names and shapes may divide a width into
different heads, or move a convolution by a different stride. Read are attributes under the names of such numbers in
PyTorch, timm and transformers; all further attributes (dropout, counters of training steps) may differ between a model
and its plan. Not covered: the activation function of a module, and numbers only in configs.

*Use* is data written by forward on modules, independent of the construction. Swin drops the shift in stages as small as
a window, RWKV divides its weights for evaluation and notes the division, mixtures of experts note their capacity, YOLO
notes the last shape. The attribute names are read off the bytecode of all code called by `forward`. Plain data under
these names belongs to the weights, like a buffer, and is saved with them. Not covered: writes by functions outside the
network's classes, and `setattr`.
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

# Names of the number of heads in attention modules.
HEADS = ("num_heads", "num_attention_heads", "num_head", "n_head", "n_heads", "nhead", "nheads", "heads")
SHORT_HEADS = ("h", "nh")  # heights, in further modules
KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
SETTINGS = frozenset(
    (*HEADS, *SHORT_HEADS, *KEY_VALUE_HEADS, "num_key_value_groups", "head_dim", "attention_head_size", "window_size")
    + ("shift_size", "groups", "num_groups", "stride", "padding", "dilation", "kernel_size", "eps", "variance_epsilon")
    + ("top_k", "num_experts_per_tok")
)
REROUTED = "rerouted"  # calls removed by surgery from a module's forward
DIFFERENT = "various"
SHOWN = 3
MODE = "training"  # written by `train` and `eval`

Use = dict[str, dict[str, Any]]


def alone(value: Any) -> Any:
    """Return the only entry of a tuple, such as `normalized_shape`; any other value unchanged.

    >>> alone((8,)), alone(8)
    (8, 8)
    """
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def like(value: Any, number: int) -> int | tuple[int]:
    """Return a number, as a tuple if `value` is a tuple.

    >>> like((8,), 6), like(8, 6)
    ((6,), 6)
    """
    return (number,) if isinstance(value, tuple) else number


def settings_of(model: nn.Module) -> dict[str, str]:
    """Return the settings by name: the value if all modules agree, else a hash of all values.

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
    """Describe the difference of two models' settings; names in one model alone (another library version) do not count.

    Calls removed from forwards count even if only one model has any.

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
    """Hash JSON primitives, in the form after writing and reading."""
    return hashlib.sha256(json.dumps(json.loads(json.dumps(data)), sort_keys=True).encode()).hexdigest()


def written_by_forward(model: nn.Module) -> frozenset[str]:
    """Return the names of attributes assigned in a network's forward, or in code called by forward.

    >>> class Counts(nn.Module):
    ...     def forward(self, x):
    ...         return self.count(x)
    ...     def count(self, x):
    ...         self.seen = len(x)
    ...         return x
    >>> sorted(written_by_forward(nn.Sequential(Counts())))
    ['seen']
    """
    return _found_in(_classes_of(model))[0]


def named_by_forward(model: nn.Module) -> frozenset[str]:
    """Return all names in a network's forward, and in code called by forward, without the code of embeddings."""
    return _found_in(_classes_of(model) - {nn.Embedding})[1]


def use_of(model: nn.Module) -> Use:
    """Return the data that forward wrote on the modules of a network, as JSON primitives by path and name.

    A module that also keeps tensors or objects from call to call, such as YOLO's anchors, is left out: plain data would
    not fit the missing objects.
    """
    names, found = written_by_forward(model), Use()
    for path, module in model.named_modules():
        own = {name: vars(module)[name] for name in sorted(names & vars(module).keys())}
        own = {name: value for name, value in own.items() if not isinstance(value, torch.dtype | torch.device)}
        if own and all(map(is_plain, own.values())):
            found[path] = own
    return found


def restore_use(model: nn.Module, use: Mapping[str, Any]) -> None:
    """Restore the data of `use_of` on a network of the same structure; no other attribute is ever written.

    Args:
        model: Newly built network.
        use: Data from a file of any author: entries outside the form of `use_of` are left out.
    """
    for path, own in use_of(model).items():
        found = use.get(path)
        given = found if isinstance(found, Mapping) else {}
        for name in own.keys() & given.keys():
            if is_plain(value := as_tuples(given[name])):
                setattr(model.get_submodule(path), name, value)


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a word, None, or a tuple of plain values."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def as_tuples(value: Any) -> Any:
    """Return a value with tuples in place of lists: JSON has no tuples."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def _is_setting(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_setting(entry) for entry in value)
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _summary(values: Mapping[str, str]) -> str:
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return f"{DIFFERENT} ({data_hash(dict(values))[:12]})"


def _classes_of(model: nn.Module) -> frozenset[type]:
    return frozenset(base for module in model.modules() for base in type(module).__mro__)


@lru_cache(maxsize=128)
def _found_in(classes: frozenset[type]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the attributes assigned in forward, and in code called by forward, and all names there."""
    own = [cls for cls in classes if cls not in (nn.Module, object)]
    written, seen, names = set[str](), set[str](), {"forward"}
    while names:
        seen |= names
        codes = [code for cls in own for name in names & vars(cls).keys() for code in _codes(vars(cls)[name])]
        for code in codes:
            written |= {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}
        names = {name for code in codes for name in code.co_names} - seen
    return frozenset(written - {MODE}), frozenset(seen)


def _codes(member: Any) -> Iterator[CodeType]:
    """Yield the code of a method or property, and of the functions inside."""
    function = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", None) or member)
    found = [getattr(function, "__code__", None)]
    while found:
        code = found.pop()
        if isinstance(code, CodeType):
            yield code
            found += code.co_consts
