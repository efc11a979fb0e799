"""Find the routed experts of mixture-of-experts layers, as groups of kind "expert".

Known by structure, not by class: a module with fused 3-D parameters of one first dimension, called with the hidden
states, the indices and the weights of the chosen experts, and beside it the router, whose weight has a row per expert.
So are Mixtral, Qwen2-MoE, Qwen3-MoE, DeepSeek-V2 and -V3 and their relatives in transformers 5. An expert takes its
slice of the fused parameters along and its entries in the router. Without its row, the router chooses as if its logit
were minus infinity (DeepSeek-V3's correction included), and every token still visits as many experts as before.

Where the router first chooses among groups of experts, every group keeps equally many, so that the others do not move
from one group to another.

A transformers config has one number of experts for all layers. Once they all keep the same number, `shared_counts` says
what it must be, and the narrowed model is a standard one; until then the config stays as it is, and `load_pruned`
opens the model.

Not covered: experts that are modules of their own, routers that are methods of a larger module, and lookup tables from
token to expert (DeepSeek-V4).
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
        block: Path of the module that holds the router and the experts.
        experts: Path of the fused experts.
        router: Path of the router.
        size: How many experts there are.
        picks: How many each token visits.
        strata: Among how many groups of experts the router chooses first; 1 if it does not.
        chosen: How many of those groups it chooses.
        ranked: How many experts of a group it looks at to rank the groups.
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
        """How many experts the router needs."""
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
    """Return those of the usual entries that count experts, by name."""
    return {name: values[name] for name in COUNTS if type(values.get(name)) is int}


def _fused(module: nn.Module) -> int | None:
    """Return how many experts a module fuses; None if it is something else."""
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
    """Read how the router chooses among groups of experts."""
    corrected = any("correction_bias" in name for name, _ in chain(router.named_buffers(), router.named_parameters()))
    ranked = 2 if corrected else 1  # DeepSeek-V3 ranks groups by their two best experts, DeepSeek-V2 by the best
    strata = _first((router, block), ("num_group", "n_group")) or 1
    if strata == 1 or getattr(router, "topk_method", getattr(block, "topk_method", "")) == "greedy":
        return {"ranked": ranked}
    return {"ranked": ranked, "strata": strata, "chosen": _first((router, block), ("topk_group",)) or 1}


def _first(holders: tuple[Any, ...], names: tuple[str, ...]) -> int | None:
    values = (getattr(holder, name, None) for holder in holders for name in names)
    return next((value for value in values if type(value) is int), None)
