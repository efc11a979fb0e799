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

from torch import Tensor, nn

from prunerecover.edits import Narrow
from prunerecover.families.transformers_layers import is_transformers_config
from prunerecover.structure import unwrap
from prunerecover.width.groups import Group, Setting, Site, Slice

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


def find_experts(model: nn.Module) -> tuple[Group, ...]:
    """Find the routed experts of all layers; no data is needed, and nothing is run.

    Args:
        model: Any module, wrapped or not, also on the meta device.

    Returns:
        One group per layer with experts, in order of depth, named by the path of the fused experts.
    """
    network = unwrap(model)
    return tuple(_group(network, mixture) for mixture in mixtures(network))


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


def check_routing(network: nn.Module, edit: Narrow) -> None:
    """Raise ValueError if an edit of experts leaves the router too few, or unevenly many in its groups."""
    if edit.kind != "expert":
        return
    mixture = next((found for found in mixtures(network) if found.experts == edit.unit), None)
    if mixture is None or not edit.gone:
        return
    if len(edit.keep) < mixture.at_least:
        raise ValueError(
            f"Expected '{edit.unit}' to keep at least {mixture.at_least} experts, as its router picks {mixture.picks} "
            f"per token, but {len(edit.keep)} would be left. Remove fewer."
        )
    length = mixture.size // mixture.strata
    left = [sum(unit // length == stratum for unit in edit.keep) for stratum in range(mixture.strata)]
    if len(set(left)) > 1:
        raise ValueError(
            f"Expected the {mixture.strata} groups of experts among which the router of '{edit.unit}' chooses to keep "
            f"equally many, but {left} would be left. Keep the same number in each."
        )


def shared_counts(network: nn.Module) -> Mapping[tuple[str, str], int]:
    """Return what must be said above the layers, where one number stands for all of them.

    These are the entries of transformers configs and the attributes of modules around several layers (which the loss
    that balances the experts reads). Where layers differ, no number is right, and what is there stays.

    Returns:
        By path of the module and attribute (`config.num_experts`): the number of experts; only what is not so already.
    """
    sizes = {mixture.block: mixture.size for mixture in mixtures(network)}
    said: dict[tuple[str, str], int] = {}
    seen: set[int] = set()
    for path, module in network.named_modules() if sizes else ():
        below = {size for block, size in sizes.items() if _is_in(block, path)}
        if len(below) != 1:
            continue
        (size,) = below
        if path not in sizes:
            said |= {(path, name): size for name, value in _counts(vars(module)).items() if value != size}
        config = getattr(module, "config", None)
        if is_transformers_config(config) and id(config) not in seen and _all_alike(network, sizes, config):
            values = _counts({name: getattr(config, name, None) for name in COUNTS})
            said |= {(path, f"config.{name}"): size for name, value in values.items() if value != size}
        seen.add(id(config))
    return said


def _all_alike(network: nn.Module, sizes: Mapping[str, int], config: Any) -> bool:
    """Whether all layers under any holder of the config have one number of experts."""
    holders = [path for path, module in network.named_modules() if getattr(module, "config", None) is config]
    return len({size for block, size in sizes.items() if any(_is_in(block, path) for path in holders)}) == 1


def _is_in(block: str, path: str) -> bool:
    return not path or block == path or block.startswith(f"{path}.")


def _counts(values: Mapping[str, Any]) -> dict[str, int]:
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


def _group(network: nn.Module, mixture: Mixture) -> Group:
    own = [Slice(tensor=name, dim=0) for name in _named(network, mixture.experts, mixture.size)]
    choice = [Slice(tensor=name, dim=0, makes=False) for name in _named(network, mixture.router, mixture.size)]
    settings = [
        Setting(module=path, attribute=name)
        for path in (mixture.experts, mixture.router, mixture.block)
        for name, value in _counts(vars(network.get_submodule(path))).items()
        if value == mixture.size
    ]
    return Group(
        name=mixture.experts,
        kind="expert",
        size=mixture.size,
        slices=(*own, *choice),
        sites=(Site(module=mixture.experts, of="routing", dim=-1),),
        settings=tuple(settings),
        at_least=mixture.at_least,
        multiple=mixture.strata,
        strata=mixture.strata,
    )


def _named(network: nn.Module, path: str, size: int) -> list[str]:
    """Return the parameters and buffers of a module that have one entry per expert along their first dimension."""
    module = network.get_submodule(path)
    tensors: Iterator[tuple[str, Tensor]] = chain(module.named_parameters(), module.named_buffers())
    return [f"{path}.{name}" for name, tensor in tensors if tensor.ndim and tensor.shape[0] == size]
