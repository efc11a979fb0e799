"""In-place calls, rewritten so that the removal of calls has no effect beyond the named calls.

First, later readers of an overwritten tensor read the result of the writing call, and in-place functions become
functions that return a new tensor. After the removal, in-place children (`nn.ReLU(inplace=True)`) get a copy of the
input if the input is read again, or if the removal made the input another tensor that gradients may need. A function on
an argument of the forward stays in place: callers may read the argument.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from prunerecover.model.replacements import PassThrough
from prunerecover.surgery.forward.calls import numbers_in, operation_of
from prunerecover.surgery.forward.tracing import refusal

VIEWS = frozenset(
    {"view", "reshape", "flatten", "unflatten", "permute", "transpose", "t", "swapaxes", "swapdims", "movedim"}
    | {"squeeze", "unsqueeze", "getitem", "chunk", "split", "tensor_split", "unbind", "expand", "expand_as", "narrow"}
    | {"select", "view_as", "reshape_as", "unfold", "diagonal", "contiguous", "to", "type", "type_as", "float", "half"}
    | {"double", "bfloat16", "detach", "alias", "real", "imag", "dropout", "identity", "ravel"}
)
FREE = (_ConvNd, _NormBase, nn.Linear, nn.LayerNorm, nn.GroupNorm)
OPERATORS = frozenset({"iadd", "imul", "isub", "itruediv", "ipow", "imatmul", "ifloordiv", "imod"})


@dataclass
class InPlace:
    """In-place calls of a graph.

    Attributes:
        children: Calls of children with in-place parts, each with the input before the removal.
        kept: Functions that stay in place, each with its input.
        outputs: Nodes that the forward returned.
    """

    children: dict[fx.Node, fx.Node] = field(default_factory=dict)
    kept: dict[fx.Node, fx.Node] = field(default_factory=dict)
    outputs: list[fx.Node] = field(default_factory=list)


def make_functional(graph: fx.Graph, module: nn.Module, where: str) -> InPlace:
    """Redirect readers of an overwritten tensor to the result of the writing call; no result changes.

    Args:
        graph: Graph of the module's forward, changed in place.
        module: Module of the graph.
        where: Name of the module in messages.

    Returns:
        Calls that `copy_where_needed` checks after the removal.

    Raises:
        ValueError: If the overwritten tensor is read through another view, or only a part of a tensor is written.
    """
    order = {node: number for number, node in enumerate(graph.nodes)}
    found, numbers = InPlace(), numbers_in(graph)
    for node in order:
        if node.kwargs.get("out") is not None or (node.op == "call_function" and node.target is operator.setitem):
            raise refusal(where, f"it writes into a part of a tensor ('{node.name}')")
        source = next(iter(node.all_input_nodes), None)
        if source is None or node in numbers:
            continue
        is_function = _writes(node)
        if node.op == "call_module" and _children_in_place(module, node):
            found.children[node] = source
        if not (is_function or (node in found.children and _is_in_place(module, node))):
            continue
        _check_views(source, node, order, numbers, where)
        source.replace_all_uses_with(node, delete_user_cb=_later(node, order), propagate_meta=False)
        if is_function and _root(source).op in ("placeholder", "get_attr"):
            found.kept[node] = source
        elif is_function:
            _return_new(node, where)
    found.outputs = _outputs(graph)
    return found


def copy_where_needed(graph: fx.Graph, module: nn.Module, found: InPlace) -> None:
    """Copy the input of in-place calls where the input is needed elsewhere.

    A returned tensor is copied if, after the removal, it is an argument of the forward: callers may write into the
    result.

    Args:
        graph: Graph after the removal of calls, changed in place.
        module: Module of the graph.
        found: Result of `make_functional` for the graph.
    """
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node, before in (found.children | found.kept).items():
        if node not in order:
            continue
        source = node.all_input_nodes[0]
        moved = source is not before
        direct = node in found.kept or _is_in_place(module, node)
        read_again = (direct or moved) and _is_read_again(source, node, order, module)
        if read_again or (moved and not _is_free(source, module)):
            _copy_for(graph, node, source)
    after, output = _outputs(graph), next(node for node in graph.nodes if node.op == "output")
    for leaf in dict.fromkeys(after):
        if leaf not in found.outputs and _root(leaf, module).op in ("placeholder", "get_attr"):
            _copy_for(graph, output, leaf)


def _outputs(graph: fx.Graph) -> list[fx.Node]:
    return list(next(node for node in graph.nodes if node.op == "output").all_input_nodes)


def _copy_for(graph: fx.Graph, reader: fx.Node, source: fx.Node) -> None:
    with graph.inserting_before(reader):
        reader.replace_input_with(source, graph.call_method("clone", (source,)))


def _later(node: fx.Node, order: dict[fx.Node, int]) -> Callable[[fx.Node], bool]:
    return lambda user: order[user] > order[node]


def _writes(node: fx.Node) -> bool:
    """Whether a function or method writes into the first argument."""
    if node.op == "call_method":
        name = str(node.target)
    elif node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        if name in OPERATORS or node.kwargs.get("inplace") is True:
            return True
    else:
        return False
    return name.endswith("_") and not name.endswith("__")


def _is_in_place(module: nn.Module, node: fx.Node) -> bool:
    return getattr(module.get_submodule(str(node.target)), "inplace", False) is True


def _children_in_place(module: nn.Module, node: fx.Node) -> bool:
    child = module.get_submodule(str(node.target))
    return any(getattr(part, "inplace", False) is True for part in child.modules())


def _return_new(node: fx.Node, where: str) -> None:
    """Make a function or method return a new tensor instead of writing."""
    target: Any = node.target
    name = target if isinstance(target, str) else target.__name__
    bare = name.removesuffix("_")
    if node.kwargs.get("inplace") is True:
        node.update_kwarg("inplace", False)
    elif isinstance(target, str):
        node.target = bare if callable(getattr(Tensor, bare, None)) else ""
    elif name in OPERATORS:
        node.target = getattr(operator, name[1:])
    else:
        node.target = getattr(F, bare, getattr(torch, bare, ""))
    if not node.target:
        raise refusal(where, f"'{name}' has no form that returns a new tensor")


def _is_view(node: fx.Node, module: nn.Module | None = None) -> bool:
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in ("T", "mT", "H", "mH", "data", "real", "imag")
    if node.op in ("call_function", "call_method"):
        return operation_of(node) in VIEWS
    kinds = nn.Identity | PassThrough | nn.Dropout | nn.Flatten
    return node.op == "call_module" and module is not None and isinstance(module.get_submodule(str(node.target)), kinds)


def _root(node: fx.Node, module: nn.Module | None = None) -> fx.Node:
    """Return the origin of a chain of views; with `module`, also through children that return their input."""
    while _is_view(node, module) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _views(root: fx.Node, module: nn.Module | None = None) -> Iterator[fx.Node]:
    """Yield a tensor that is no view, and all nodes that may share memory with the tensor."""
    yield root
    for user in root.users:
        if _is_view(user, module) and user.all_input_nodes[0] is root:
            yield from _views(user, module)


def _check_views(source: fx.Node, node: fx.Node, order: dict[fx.Node, int], numbers: set[fx.Node], where: str) -> None:
    for other in _views(_root(source)):
        later = [user for user in other.users if order[user] > order[node] and user not in numbers]
        if other is not source and order[other] < order[node] and later:
            raise refusal(where, f"what '{node.name}' changes in place is read through a view of it ('{other.name}')")


def _is_free(source: fx.Node, module: nn.Module) -> bool:
    """Whether the call that made a tensor no longer needs the tensor, as input or for gradients."""
    if source.op == "call_module":
        return isinstance(module.get_submodule(str(source.target)), FREE)
    return source.op in ("call_function", "call_method") and operation_of(source) in ("add", "sub", "cat", "clone")


def _is_read_again(source: fx.Node, node: fx.Node, order: dict[fx.Node, int], module: nn.Module) -> bool:
    """Whether the input of a writing call is read later, or is an argument handed on by children."""
    root = _root(source, module)
    if root.op in ("placeholder", "get_attr") and _root(source) is not root:
        return True
    others = (user for other in _views(root, module) for user in other.users if user is not node)
    return any(order[user] > order[node] and not _is_view(user, module) for user in others)
