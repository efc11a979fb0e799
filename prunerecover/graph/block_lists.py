"""Lists of blocks that each keep a block: without any, the network would compute next to nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import nn

from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.model.paths import get_module, parent_path
from prunerecover.plan.units import Unit
from prunerecover.refusal import Refusal

BlockList = frozenset[str]  # paths of all blocks of one container


def block_lists(model: nn.Module, graph: ComputationGraph, blocks: Sequence[str]) -> tuple[BlockList, ...]:
    """Return the lists with removable blocks, including blocks of the same classes that must stay.

    Args:
        model: Network of the graph.
        graph: Computation graph of a forward pass.
        blocks: Paths of the removable blocks.
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
    """Return a reason if the removal of `blocks` would empty a list, else an empty string."""
    for one in lists:
        if one <= set(blocks):
            return f"Expected at least one block of '{parent_path(min(one))}' to stay, but all {len(one)} would go."
    return ""


def check_blocks_stay(lists: Sequence[BlockList], units: Sequence[Unit], count: int) -> None:
    """Raise ValueError if `count` blocks cannot be removed because each list keeps a block.

    Args:
        lists: Lists of blocks of the network.
        units: Removable units.
        count: Number of blocks to remove.
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
