"""Run variants of one network on the same batches, and compute only the part behind the first change.

A network is cut into pieces: calls of modules, down to calls with a small part of the layers. Outputs of pieces of a
base network are kept per piece and batch, while there is room. In a run of a variant, the largest pieces before the
first changed node answer with the kept outputs. Any control flow will do, residual and long connections included, as
long as the pieces before the change compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.model.hooks import removed_after, users_hooks
from prunerecover.model.paths import get_module, is_within

PARTS = 24  # into about so many of the smallest pieces a network is cut
MOST_KEPT = 1 << 30  # bytes of outputs of pieces; batches beyond are run as a whole


class PrefixRunner:
    """Runs variants of a network.

    Args:
        graph: Graph of the dense network; variants have the same module paths.
        batches: Number of batches.
        run: Function that runs a network on the batch of a number.
    """

    def __init__(self, graph: ComputationGraph, batches: int, run: Callable[[nn.Module, int], Any]) -> None:
        self.graph, self._run = graph, run
        self.pieces = _pieces(graph)
        self._copies = any(node.in_place for node in graph.nodes)
        self._kept: list[dict[str, Any]] = [{} for _ in range(batches)]

    def keep(self, network: nn.Module, first: int = 0) -> Iterator[Any]:
        """Make a network the base for later variants, and yield the outputs by batch; the base changes after the last.

        Args:
            network: New base.
            first: Index of the first node with a difference from the former base.
        """
        room = MOST_KEPT
        for number, kept in enumerate(self._kept):
            with self._answering(network, number, first), self._keeping(network, number, first):
                output = self._run(network, number)
            room -= sum(leaf.nbytes for leaf in tree_leaves(kept) if isinstance(leaf, Tensor))
            if room < 0:
                kept.clear()
            yield output

    def forget(self) -> None:
        """Give up all kept outputs."""
        for kept in self._kept:
            kept.clear()

    def run(self, network: nn.Module, first: int, numbers: Sequence[int]) -> Iterator[Any]:
        """Yield the outputs of a variant on some batches.

        Args:
            network: Variant.
            first: Index of the first node with a difference from the base.
            numbers: Numbers of the batches.
        """
        for number in numbers:
            with self._answering(network, number, first):
                yield self._run(network, number)

    @contextmanager
    def _answering(self, network: nn.Module, batch: int, first: int) -> Iterator[None]:
        """Let the pieces before a node answer with the kept outputs."""
        replaced: dict[str, nn.Module] = {}
        try:
            for path, last in self.pieces.items():
                known = last < first and path in self._kept[batch]
                if not known or any(is_within(path, outer) for outer in replaced):
                    continue
                module = get_module(network, path)
                if not any(map(users_hooks, list(module.modules())[1:])):  # hooks inside may hand tensors on
                    replaced[path] = module
                    answer: Callable[..., Any] = partial(self._answer, self._kept[batch][path])
                    setattr(module, "forward", answer)  # noqa: B010  (mypy: a method)
            yield
        finally:
            for module in replaced.values():
                vars(module).pop("forward", None)

    def _answer(self, kept: Any, *_: Any, **__: Any) -> Any:
        return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, kept) if self._copies else kept

    @contextmanager
    def _keeping(self, network: nn.Module, batch: int, first: int) -> Iterator[None]:
        kept, handles, called = self._kept[batch], [], set[str]()
        modules = dict(network.named_modules())
        for changed in (path for path, last in self.pieces.items() if last >= first):
            kept.pop(changed, None)
            if changed in modules:  # else it went with a module around it

                def keep(_: nn.Module, __: Any, output: Any, path: str = changed) -> None:
                    if path in called:  # the network ran several times, and each run has an output of its own
                        kept.pop(path, None)
                    else:
                        kept[path] = self._answer(output)
                    called.add(path)

                handles.append(modules[changed].register_forward_hook(keep))
        with removed_after(*handles):
            yield


def _pieces(graph: ComputationGraph) -> dict[str, int]:
    """Cut a network into calls, each path called once, down to calls with a small part of the layers; outer first.

    Returns:
        Index of each call's last node, by path of the module.
    """
    layers = [sum(graph.nodes[index].kind == "layer" for index in own) for own in graph.inside]
    most = max(1, len(graph.of_kind("layer")) // PARTS)
    found, waiting = dict[str, int](), [0]
    while waiting:
        number = waiting.pop()
        made = graph.calls[number]
        if not layers[number]:
            continue
        once = bool(made.path) and graph.times[made.path] == 1
        if once:
            found[made.path] = max(graph.inside[number])
        if not once or (layers[number] > most and made.children):
            waiting += made.children
    return found
