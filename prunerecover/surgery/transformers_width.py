"""Transformers configs of narrowed models: entries that let `from_pretrained` reopen a model.

A config has a single number for all layers: an entry follows once all layers have the same width, and stays unchanged
until then. The numbers are read off the layers, by the names of parts in transformers. New entries stay only if a model
built from them equals the narrowed one. A BERT without some heads, for example, cannot be described: the code computes
the size of a head as a share of the hidden size. `load_pruned` opens every narrowed model.

Not covered: experts (`shared_counts` in `routing`), the channels of convolutional networks, fused projections, and
models with code from outside transformers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from prunerecover.families.constructors import constructor_of
from prunerecover.families.transformers_layers import is_transformers_config, is_transformers_model
from prunerecover.model.linears import linear_shape
from prunerecover.model.paths import parent_path
from prunerecover.surgery.journal import Journal

# Config entries for the neurons of an MLP, by the last names of the linear before them; the first present entry counts.
NEURONS = {
    "mlp.up_proj": ("intermediate_size",),
    "mlp.c_fc": ("n_inner",),
    "intermediate.dense": ("intermediate_size",),
    "shared_expert.up_proj": ("shared_expert_intermediate_size",),
    "fc1": ("ffn_dim", "intermediate_size"),
}
QUERIES, KEYS = ("q_proj", "query"), ("k_proj", "key")
HEAD_SIZES = ("head_dim", "attention_head_size")


def follow_widths(model: nn.Module, journal: Journal) -> None:
    """Set the widths in the configs of transformers models, where all layers agree.

    Args:
        model: Transformers model, or a module that holds some.
        journal: Journal for the changes.
    """
    for part in _outermost(model):
        before, entries = len(journal.entries), _to_say(part)
        if not entries:
            continue
        journal.copy_configs(model)
        for holder, name, value in entries:
            setattr(part.get_submodule(holder).config, name, value)
        if constructor_of(part) is None:
            journal.undo(model, before)


def _outermost(module: nn.Module) -> Iterator[nn.Module]:
    if is_transformers_model(module):
        yield module
        return
    for child in module.children():
        yield from _outermost(child)


def _to_say(model: nn.Module) -> list[tuple[str, str, int]]:
    """Return paths of modules, with the config entries to change and the new values."""
    holders: dict[str, str] = {}  # path of the config that a module was built from, by module
    first: dict[int, str] = {}
    widths: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for path, module in model.named_modules():
        config = vars(module).get("config")
        own = is_transformers_config(config)
        holders[path] = first.setdefault(id(config), path) if own else holders[parent_path(path)]
        config = model.get_submodule(holders[path]).config
        for name, width in (*_neurons(path, module, config), *_heads(module).items()):
            widths[holders[path]][name].add(width)
    return [
        (holder, name, value)
        for holder, found in widths.items()
        for name, value in _differing(model.get_submodule(holder).config, found).items()
    ]


def _neurons(path: str, module: nn.Module, config: Any) -> Iterator[tuple[str, int]]:
    weight = module._parameters.get("weight")
    names = next((names for last, names in NEURONS.items() if f".{path}".endswith(f".{last}")), ())
    name = next((name for name in names if hasattr(config, name)), None)
    if name is not None and weight is not None and weight.ndim == 2:
        yield name, linear_shape(module)[1]


def _heads(attention: nn.Module) -> dict[str, int]:
    children = dict(attention.named_children())
    query, key = (next((children[name] for name in names if name in children), None) for names in (QUERIES, KEYS))
    size = next((value for name in HEAD_SIZES if type(value := getattr(attention, name, None)) is int), None)
    if not (isinstance(query, nn.Linear) and isinstance(key, nn.Linear) and size):
        return {}
    heads, shared = (linear_shape(linear)[1] // size for linear in (query, key))
    read = {"hidden_size": linear_shape(query)[0]}
    return {**read, "num_attention_heads": heads, "num_key_value_heads": shared, "head_dim": size}


def _differing(config: Any, found: Mapping[str, set[int]]) -> dict[str, int]:
    """Return the changed entries; none if layers differ in an entry, or the config has a number per stage."""
    per_stage = any(isinstance(getattr(config, name, None), list | tuple) for name in found)
    if per_stage or any(len(values) > 1 for values in found.values()):
        return {}
    said = {name: next(iter(values)) for name, values in found.items()}
    differing = {name: v for name, v in said.items() if name != "head_dim" and getattr(config, name, v) != v}
    heads = getattr(config, "num_attention_heads", 0)
    size = getattr(config, "head_dim", None) or (heads and getattr(config, "hidden_size", 0) // heads)
    if differing.keys() & {"num_attention_heads", "hidden_size"} or said.get("head_dim", size) != size:
        differing["head_dim"] = said["head_dim"]  # else the head size would be a share of the hidden size
    return differing
