"""Names of nodes among the calls that a module's own forward makes, for rewriting that forward."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from prunerecover.graph.computation_graph import ComputationGraph, Node
from prunerecover.model.paths import get_module


def whole_modules(graph: ComputationGraph, nodes: Sequence[Node]) -> tuple[tuple[str, ...], tuple[Node, ...]]:
    """Return the modules that some nodes are all of, and the nodes that are in none of them.

    Such as a norm, or a norm with the activation that it applies itself; identities inside, such as dropout, do not
    count. Modules that are called several times are none.
    """
    wanted, found = {node.index for node in nodes}, []
    covered: set[int] = set()
    for call, inside in zip(graph.calls, graph.inside, strict=True):
        own = inside & wanted
        rest = (graph.nodes[index] for index in inside - wanted)
        alone = call.path and graph.times[call.path] == 1 and call.returns == 1
        if own and alone and not own <= covered and all(node.kind == "identity" for node in rest):
            found.append(call.path)
            covered |= own
    return tuple(found), tuple(node for node in nodes if node.index not in covered)


def own_call(model: nn.Module, graph: ComputationGraph, node: Node) -> tuple[str, str] | None:
    """Return the module whose forward makes the call that a node is, and its name there; None: there is no telling.

    Args:
        model: That the graph was traced from.
        graph: Of one forward pass.
        node: A whole call of a module, or an operation in the code of one.

    Returns:
        A path, and a name as in `prunerecover.surgery.forward.calls`, such as "relu:1".
    """
    caller = graph.calls[node.call].parent if node.whole else node.call
    if caller < 0 or graph.times[graph.calls[caller].path] > 1:
        return None
    path = graph.calls[caller].path
    if not node.whole:
        name = node.operation.strip("_")
        children = {child for child, _ in get_module(model, path).named_modules()}
        return path, f"{'aten.' if name in children else ''}{name}:{node.occurrence}"
    child = node.module.removeprefix(f"{path}.") if path else node.module
    siblings = [i for i in graph.calls[caller].children if graph.calls[i].path == node.module]
    return path, f"{child}:{siblings.index(node.call)}"
