"""Groups of kind "expert": routed experts of mixture-of-experts layers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from torch import Tensor, nn

from prunerecover.families.experts import Mixture, expert_counts, mixtures
from prunerecover.model.paths import unwrap
from prunerecover.plan.groups import Group, Setting, Slice, Tap


def find_experts(model: nn.Module) -> tuple[Group, ...]:
    """Find the routed experts of all layers, without data and without running the model.

    Args:
        model: Module of any kind, wrapped or not, also on the meta device.

    Returns:
        One group per layer with experts, in order of depth, named by the path of the fused experts.
    """
    network = unwrap(model)
    return tuple(_group(network, mixture) for mixture in mixtures(network))


def _group(network: nn.Module, mixture: Mixture) -> Group:
    own = [Slice(tensor=name, dim=0) for name in _named(network, mixture.experts, mixture.size)]
    choice = [Slice(tensor=name, dim=0, makes=False) for name in _named(network, mixture.router, mixture.size)]
    settings = [
        Setting(module=path, attribute=name)
        for path in (mixture.experts, mixture.router, mixture.block)
        for name, value in expert_counts(vars(network.get_submodule(path))).items()
        if value == mixture.size
    ]
    return Group(
        name=mixture.experts,
        kind="expert",
        size=mixture.size,
        slices=(*own, *choice),
        taps=(Tap(module=mixture.experts, of="routing", dim=-1),),
        settings=tuple(settings),
        at_least=mixture.at_least,
        multiple=mixture.strata,
        strata=mixture.strata,
    )


def _named(network: nn.Module, path: str, size: int) -> list[str]:
    """Return the parameters and buffers of a module with an entry per expert along the first dimension."""
    module = network.get_submodule(path)
    tensors: Iterator[tuple[str, Tensor]] = chain(module.named_parameters(), module.named_buffers())
    return [f"{path}.{name}" for name, tensor in tensors if tensor.ndim and tensor.shape[0] == size]
