"""Routed experts of mixture-of-experts layers, as groups of kind "expert".

Layers are recognised by structure, not by class: a module with fused 3-D parameters of the same first dimension, called
with the hidden states, the indices and the weights of the chosen experts, beside a router with a row of weights per
expert. Mixtral, Qwen2-MoE, Qwen3-MoE, DeepSeek-V2 and -V3 and relatives in transformers 5 have this structure. A
removed expert loses its slice of the fused parameters and its entries in the router. Without the row, the router
chooses as with a logit of minus infinity (DeepSeek-V3's correction included), and every token still visits as many
experts as before.

Where the router first chooses among groups of experts, every group keeps equally many, so that no expert moves to
another group.

A transformers config has a single number of experts for all layers. Once all layers keep the same number,
`shared_counts` of `surgery.routing` gives the new entries of the config, and the narrowed model is a standard one;
until then the config stays unchanged, and `load_pruned` opens the model.

Not covered: experts as separate modules, routers as methods of a larger module, and lookup tables from token to expert
(DeepSeek-V4).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import nn

COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
PICKS = ("top_k", "num_experts_per_tok")
ROUTERS = ("gate", "router")


@dataclass(frozen=True)
class Mixture:
    """A layer of routed experts.

    Attributes:
        block: Path of the module with the router and the experts.
        experts: Path of the fused experts.
        router: Path of the router.
        size: Number of experts.
        picks: Number of experts per token.
        strata: Number of groups of experts to choose from first; 1 without groups.
        chosen: Number of groups chosen by the router.
        ranked: Number of a group's best experts that rank the group.
    """

    block: str
    experts: str
    router: str
    size: int
    picks: int
    strata: int = 1
    chosen: int = 1
    ranked: int = 1

    @property
    def at_least(self) -> int:
        """Number of experts that the router needs."""
        return self.strata * max(self.ranked, -(-self.picks // self.chosen))


def mixtures(network: nn.Module) -> Iterator[Mixture]:
    """Yield every layer of routed experts."""
    for path, block in network.named_modules():
        for name, child in block.named_children():
            size = _fused(child)
            router = None if size is None else _router_of(block, name, size)
            if size is None or router is None:
                continue
            picks = _first((block.get_submodule(router), block, getattr(block, "config", None)), PICKS)
            if picks is not None:
                prefix = f"{path}." if path else ""
                rules = _grouped(block, block.get_submodule(router))
                yield Mixture(path, prefix + name, prefix + router, size, picks, **rules)


def expert_counts(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the usual entries of a config with a number of experts, by name."""
    return {name: values[name] for name in COUNTS if type(values.get(name)) is int}


def _fused(module: nn.Module) -> int | None:
    """Return the number of experts in a module of fused experts; None for another module."""
    lengths = {p.shape[0] for p in module._parameters.values() if p is not None and p.ndim == 3}
    matrices = sum(p is not None and p.ndim == 3 for p in module._parameters.values())
    if matrices < 2 or len(lengths) != 1:
        return None
    (size,) = lengths
    arguments = inspect.signature(module.forward).parameters
    routed = len(arguments) >= 3 and getattr(module, "num_experts", size) == size
    return size if routed else None


def _router_of(block: nn.Module, experts: str, size: int) -> str | None:
    for name, child in block.named_children():
        weight = child._parameters.get("weight")
        chooses = name in ROUTERS or _first((child,), PICKS) is not None
        if name != experts and chooses and weight is not None and weight.ndim == 2 and weight.shape[0] == size:
            return name
    return None


def _grouped(block: nn.Module, router: nn.Module) -> dict[str, int]:
    """Read the router's choice among groups of experts."""
    corrected = any("correction_bias" in name for name, _ in chain(router.named_buffers(), router.named_parameters()))
    ranked = 2 if corrected else 1  # DeepSeek-V3 ranks groups by their two best experts, DeepSeek-V2 by the best
    strata = _first((router, block), ("num_group", "n_group")) or 1
    if strata == 1 or getattr(router, "topk_method", getattr(block, "topk_method", "")) == "greedy":
        return {"ranked": ranked}
    return {"ranked": ranked, "strata": strata, "chosen": _first((router, block), ("topk_group",)) or 1}


def _first(holders: tuple[Any, ...], names: tuple[str, ...]) -> int | None:
    values = (getattr(holder, name, None) for holder in holders for name in names)
    return next((value for value in values if type(value) is int), None)
