"""Lists of blocks, of which one block each stays: else a network would be left that computes next to nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import nn

from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.model.paths import get_module, parent_path
from prunerecover.plan.units import Unit
from prunerecover.refusal import Refusal

BlockList = frozenset[str]  # paths of all blocks of one container


def block_lists(model: nn.Module, graph: ComputationGraph, blocks: Sequence[str]) -> tuple[BlockList, ...]:
    """Return the lists that some blocks are in, with the blocks of their classes that cannot go.

    Args:
        model: That the graph was traced from.
        graph: Of one forward pass.
        blocks: Paths of blocks that can go.
    """
    classes: dict[str, set[type[nn.Module]]] = {}
    for path in blocks:
        classes.setdefault(parent_path(path), set()).add(type(get_module(model, path)))
    lists: dict[str, set[str]] = {container: set() for container in classes}
    for path in graph.times:
        container = parent_path(path)
        if path and type(get_module(model, path)) in classes.get(container, ()):
            lists[container].add(path)
    return tuple(map(frozenset, lists.values()))


def why_emptied(lists: Sequence[BlockList], blocks: Collection[str]) -> str:
    """Return why some blocks cannot go together: none of their list would stay; empty if they can."""
    for one in lists:
        if one <= set(blocks):
            return f"Expected at least one block of '{parent_path(min(one))}' to stay, but all {len(one)} would go."
    return ""


def check_blocks_stay(lists: Sequence[BlockList], units: Sequence[Unit], count: int) -> None:
    """Raise ValueError if so many blocks cannot go, for one of each list stays.

    Args:
        lists: Of the network.
        units: That may go.
        count: How many blocks go.
    """
    blocks = {unit.name for unit in units if unit.kind == "block"}
    full = [one for one in lists if one <= blocks]
    most = len(blocks) - len(full)
    if full and count > most:
        names = ", ".join(f"'{parent_path(min(one))}'" for one in full)
        raise Refusal(
            f"at least one block of {names} to stay, so that at most {most} of {len(blocks)} blocks can go",
            f"got {count}",
            "Lower the number.",
        )
