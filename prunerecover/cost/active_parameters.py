"""Parameters active per token: of routed experts, only as many as the router picks."""

from __future__ import annotations

from torch import nn

from prunerecover.families.experts import mixtures


def active_parameters(network: nn.Module) -> int:
    """Return the number of parameters active per token; all parameters without routed experts.

    >>> active_parameters(nn.Linear(3, 5))
    20

    Args:
        network: Network, unwrapped, also on the meta device.
    """
    idle = 0
    for mixture in mixtures(network):
        experts = network.get_submodule(mixture.experts)
        stacked = sum(p.numel() for p in experts.parameters() if p.shape[0] == mixture.size)
        idle += stacked // mixture.size * max(0, mixture.size - mixture.picks)
    return sum(p.numel() for p in network.parameters()) - idle
