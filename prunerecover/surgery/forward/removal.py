"""Removal of calls and operands from the graph of a forward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import fx, nn

from prunerecover.plan.edit_parts import split_call
from prunerecover.surgery.forward.calls import find_call, named_calls, operation_of

SUMS, LISTS = ("add", "mul"), ("cat",)
Removed = dict[fx.Node, set[int] | None]


def take_out(graph: fx.Graph, module: nn.Module, calls: Sequence[str], where: str) -> None:
    """Replace named calls by their first tensor, and remove named operands from sums and lists.

    Args:
        graph: Graph of the module's forward, changed in place; dead nodes stay.
        module: Module of the graph.
        calls: Names of calls, all for the graph before the removal.
        where: Name of the module in messages.

    Raises:
        ValueError: If a call or operand is missing, or no tensor would remain.
    """
    named, removed = named_calls(graph, module), Removed()
    for call in calls:
        name, operand = split_call(call)
        node = find_call(named, name, where)
        if operand is not None or _has_operands(node):
            gone = removed.setdefault(node, set())
            assert gone is not None
            gone |= _operands(node, operand, call, where)
        else:
            removed[node] = None
    for node, operands in removed.items():
        stays = _first_tensor(node, where) if operands is None else _without(node, operands, where)
        if stays is not None:
            node.replace_all_uses_with(stays)
            graph.erase_node(node)


def _has_operands(node: fx.Node) -> bool:
    return node.op != "call_module" and operation_of(node) in SUMS + LISTS


def _operands(node: fx.Node, operand: int | None, call: str, where: str) -> set[int]:
    """Return the numbers of the removed operands: the named operand, or all behind the first tensor."""
    if not _has_operands(node):
        raise ValueError(
            f"Expected an operand of an addition, a multiplication or a concatenation, but got '{call}' of {where}. "
            f"Name the whole call: '{call.partition('[')[0]}'."
        )
    values = _values(node, where)
    if operand is None:
        first = next(number for number, value in enumerate(values) if isinstance(value, fx.Node))
        return set(range(len(values))) - {first}
    if operand >= len(values):
        raise ValueError(
            f"Expected one of the {len(values)} operands of '{call.partition('[')[0]}' of {where}, but got '{call}'. "
            "Count from 0."
        )
    return {operand}


def _values(node: fx.Node, where: str) -> list[Any]:
    """Return the operands of a sum, with a tensor first as in ATen, or of a list."""
    if operation_of(node) in LISTS:
        values = node.args[0] if node.args else node.kwargs["tensors"]
        if not isinstance(values, list | tuple):
            raise ValueError(
                f"Expected a concatenation of single tensors, but that of {where} ('{node.name}') takes a list that "
                "comes from elsewhere. Remove entries where the list is made."
            )
        return list(values)
    values = [*node.args, *(node.kwargs[name] for name in ("input", "other") if name in node.kwargs)][:2]
    return values if isinstance(values[0], fx.Node) else values[::-1]


def _without(node: fx.Node, operands: set[int], where: str) -> fx.Node | None:
    """Remove operands; return a single remaining operand, else None."""
    values = _values(node, where)
    left = [value for number, value in enumerate(values) if number not in operands]
    if not any(isinstance(value, fx.Node) for value in left):
        raise ValueError(
            f"Expected at least one tensor to stay in '{operation_of(node)}' of {where}, but all "
            f"{len(values)} operands or all tensors among them are to go. Name fewer."
        )
    if node.kwargs.get("alpha", 1) != 1 and 0 in operands:
        raise ValueError(
            f"Expected a plain sum, but the sum of {where} ('{node.name}') scales the remaining operand (alpha). "
            "Remove the other operand."
        )
    if len(left) == 1:
        return left[0]  # type: ignore[no-any-return]
    if node.args:
        node.update_arg(0, left)
    else:
        node.update_kwarg("tensors", left)
    return None


def _first_tensor(node: fx.Node, where: str) -> fx.Node:
    flat: Iterable[Any] = (*node.args, *node.kwargs.values())
    first = next((value for value in flat if isinstance(value, fx.Node)), None)
    if first is None:
        raise ValueError(
            f"Expected a call with a tensor to hand on, but '{node.name}' of {where} takes none. Name another call."
        )
    return first
