"""Transformers configs of narrowed models: entries that keep a model one that `from_pretrained` reopens.

A config has one number for all layers: it can follow once they all have the same width, and stays as it is until then.
The numbers are read off the layers, by the names that transformers gives to their parts. They are taken over only if
building a model from them gives this one: a BERT, for example, that lost heads cannot be described, for its code takes
the size of a head for a share of the hidden size. `load_pruned` opens every narrowed model.

Not covered: experts (`shared_counts` of `experts`), the channels of convolutional networks, fused projections, and
models of other code than transformers' own.
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

# Entries that count an MLP's neurons, by the last names of the linear that makes them; the first that a config has.
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
    """Let the configs of transformers models say how wide their layers are, where all are alike.

    Args:
        model: A transformers model, or anything around some.
        journal: Where changes are noted.
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
    """Return paths of modules with entries of their configs, and what these must become."""
    holders: dict[str, str] = {}  # for each module, where the config is that it was built from
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
    """Return the entries that change; none if layers differ in any of them, or the config has one number per stage."""
    per_stage = any(isinstance(getattr(config, name, None), list | tuple) for name in found)
    if per_stage or any(len(values) > 1 for values in found.values()):
        return {}
    said = {name: next(iter(values)) for name, values in found.items()}
    differing = {name: v for name, v in said.items() if name != "head_dim" and getattr(config, name, v) != v}
    heads = getattr(config, "num_attention_heads", 0)
    size = getattr(config, "head_dim", None) or (heads and getattr(config, "hidden_size", 0) // heads)
    if differing.keys() & {"num_attention_heads", "hidden_size"} or said.get("head_dim", size) != size:
        differing["head_dim"] = said["head_dim"]  # else it is a share of the hidden size
    return differing
