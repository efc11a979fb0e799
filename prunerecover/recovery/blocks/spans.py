"""Blocks that learn after surgery, each with the place of the dense network whose stream the block leads to.

A list of blocks is a ModuleList or Sequential whose modules each read the output of the module before. A block in front
of removed blocks leads to the dense stream behind the removed ones, and so does a block in front of replacements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.hooks import counting, recording
from prunerecover.model.paths import get_module, is_within
from prunerecover.plan.plan import Plan
from prunerecover.plan.removed_units import names_after


@dataclass(frozen=True)
class Span:
    """A block that learns, with the modules behind that do not, up to the next block that does.

    Attributes:
        path: Path of the block in the pruned network.
        pruned: Numbers of the block, and of the next one that learns, in the list of the pruned network.
        dense: Numbers of the same two in the list of the dense network.
    """

    path: str
    pruned: tuple[int, int]
    dense: tuple[int, int]


def spans_of(network: nn.Module, dense: nn.Module, plan: Plan, inputs: ModelInputs) -> dict[str, list[Span]]:
    """Return the spans of each list of blocks, by the list's path, in the order of execution.

    Args:
        network: Pruned network in evaluation mode.
        dense: Dense network in evaluation mode.
        plan: Plan that leads from one to the other.
        inputs: Batch, for one pass.

    Raises:
        ValueError: If the dense network has no list of blocks, or the pruned network not the same without removed ones.
    """
    names, found = names_after(plan.edits), dict[str, list[Span]]()
    for container in _lists(dense, inputs):
        prefix = f"{container}." if container else ""
        modules = dict(get_module(network, container).named_children())
        numbers = {prefix + name: at for at, (name, _) in enumerate(get_module(dense, container).named_children())}
        places = [numbers.get(names.dense_name(prefix + name), -1) for name in modules]
        gone = len(names.taken.get(container, ()))
        if len(modules) + gone != len(numbers) or -1 in places:
            raise ValueError(
                f"Expected the network after the plan and the dense network before it, but '{container}' has "
                f"{len(modules)} blocks in the first and {len(numbers)} in the second, and the plan removes {gone}. "
                "Copy the network before apply_plan, and pass both."
            )
        starts = [at for at, module in enumerate(modules.values()) if _learns(module)]
        paths, ends = [prefix + name for name in modules], [*starts[1:], len(modules)]
        places.append(len(numbers))
        spans = [Span(paths[at], (at, end), (places[at], places[end])) for at, end in zip(starts, ends, strict=True)]
        if spans:
            found[container] = spans
    if not found:
        raise ValueError(
            f"Expected a network with a list of blocks, each reading the output of the block before, but "
            f"{type(dense).__name__} has none. Use reconstruct, which fits layer by layer."
        )
    return found


def _learns(module: nn.Module) -> bool:
    """Whether a module of a list is a block with parameters, no single layer and no replacement."""
    return any(True for _ in module.children()) and any(True for _ in module.parameters())


def _lists(network: nn.Module, inputs: ModelInputs) -> list[str]:
    """Return the paths of the outermost lists of blocks, in the order of execution."""
    lists = {
        path: [f"{path}.{name}" if path else name for name, _ in module.named_children()]
        for path, module in network.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
    }
    lists = {path: own for path, own in lists.items() if sum(_learns(get_module(network, one)) for one in own) > 1}
    modules = {path: get_module(network, path) for own in lists.values() for path in own}
    with recording(modules) as seen, counting(modules) as calls:
        call(network, inputs)
    found = {path: own for path, own in lists.items() if _is_chain(own, seen, calls)}
    outermost = [path for path in found if not any(is_within(path, other) for other in found if other != path)]
    return sorted(outermost, key=lambda path: list(calls).index(found[path][0]))


def _is_chain(blocks: Sequence[str], seen: Mapping[str, Tensor], calls: Mapping[str, int]) -> bool:
    """Whether modules run once each, on the output of the module before."""
    once = all(calls[path] == 1 for path in blocks)
    return once and all(seen[f"{before}.out"] is seen[f"{path}.in"] for before, path in pairwise(blocks))
