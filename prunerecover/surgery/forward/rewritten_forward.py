"""Modules whose forward is rewritten without some of its calls: an activation, an addend, a child.

Depth pruning removes single layers, and the activation behind a layer with the layer. Where the activation is a
function (`F.relu(x)`) or a child with several calls, no submodule can be replaced. The forward of the smallest module
around the activation is traced with torch.fx, the call removed, and the code rewritten. The module keeps the class,
children, parameters, hooks and attributes, and can be copied, pickled, exported and compiled as before. See `calls` for
the names of calls, `tracing` for refusals and `in_place` for in-place calls.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from prunerecover.surgery.forward.calls import named_calls
from prunerecover.surgery.forward.code import Forward, RewrittenForward, code_of, forward_of, set_forward
from prunerecover.surgery.forward.in_place import copy_where_needed, make_functional
from prunerecover.surgery.forward.removal import take_out
from prunerecover.surgery.forward.tracing import trace_forward


@dataclass(frozen=True)
class Rewriting:
    """Change of a module by the removal of calls.

    Attributes:
        calls: Names of the calls.
        forward: Remaining code.
        gone: Paths of the children, parameters and buffers that the forward no longer reads.
    """

    calls: tuple[str, ...]
    forward: Forward
    gone: tuple[str, ...]


def without_calls(module: nn.Module, calls: Sequence[str]) -> nn.Module:
    """Return a module without some calls of the module's own forward.

    Each named call returns the first tensor instead, and a sum or list loses a named operand: `x + f(x)` without
    "add:0[1]" is x. Children and parameters that the forward no longer uses leave the module; children that it never
    called stay. In-place calls return a new tensor instead.

    Args:
        module: Module, left unchanged; the new one shares its children, parameters, buffers and hooks.
        calls: Names as in `prunerecover.surgery.forward.calls`, all for the present forward.

    Returns:
        An instance of the same class in the same mode.

    Raises:
        ValueError: If the forward cannot be traced, or lacks a call.

    >>> class Block(nn.Module):
    ...     def forward(self, x):
    ...         return x + x.relu()
    >>> without_calls(Block(), ["relu:0"])(Tensor([-1])), without_calls(Block(), ["add:0[1]"])
    (tensor([-2.]), Block(without add:0[1]))
    """
    rewriting = find_rewriting(module, calls)
    new = _share(module)
    for path in rewriting.gone:
        holder = new
        for name in path.split(".")[:-1]:
            child = holder.get_submodule(name)
            holder._modules[name] = _share(child) if child is module.get_submodule(name) else child
            holder = holder.get_submodule(name)
    install(new, rewriting)
    return new


def calls_of(module: nn.Module) -> tuple[str, ...]:
    """Return the names of all calls in a module's own forward, in the order of execution.

    Raises:
        ValueError: If the forward cannot be traced.

    >>> calls_of(nn.TransformerEncoderLayer(4, 1, 4).linear1)
    ('linear:0',)
    """
    return tuple(named_calls(trace_forward(module, _named(module)).graph, module))


def find_rewriting(module: nn.Module, calls: Sequence[str], where: str = "") -> Rewriting:
    """Compute the change of a module by the removal of calls; the module is not changed.

    Args:
        module: Any module with a forward of its own.
        calls: Names of calls, see `without_calls`.
        where: Name of the module in messages; by default the class.

    Raises:
        ValueError: If the forward cannot be traced, or lacks a call.
    """
    where = where or _named(module)
    traced = trace_forward(module, where)
    graph, read = traced.graph, _read(traced.graph)
    in_place = make_functional(graph, module, where)
    effects = {node for node in graph.nodes if not node.users} | in_place.kept.keys()
    take_out(graph, module, calls, where)
    graph.eliminate_dead_code(lambda node: node in effects or node.op in ("placeholder", "output"))
    copy_where_needed(graph, module, in_place)
    left = _read(graph)
    gone = [path for path in read if not any(f"{other}.".startswith(f"{path}.") for other in left)]
    gone = [path for path in gone if not any(path.startswith(f"{other}.") for other in gone) and _is_held(module, path)]
    settings = traced.settings | (module.code.settings if isinstance(module, RewrittenForward) else frozenset())
    return Rewriting(tuple(calls), code_of(graph, settings), tuple(gone))


def install(module: nn.Module, rewriting: Rewriting) -> None:
    """Set a module's new forward and remove unread parts; in a list, an identity keeps the numbers."""
    for path in rewriting.gone:
        at, registry, holder, name = place_of(module, path)
        if registry != "_modules":
            holder[name] = None
        elif isinstance(module.get_submodule(at), nn.Sequential | nn.ModuleList | nn.ModuleDict):
            holder[name] = nn.Identity()
        else:
            del holder[name]
    original, _, earlier = forward_of(module)
    set_forward(module, original, rewriting.forward, (*earlier, *rewriting.calls))


def place_of(module: nn.Module, path: str) -> tuple[str, str, dict[str, Any], str]:
    """Return the place of a part of a module.

    Args:
        module: Module with the part, directly or in a descendant.
        path: Path of a child, parameter or buffer.

    Returns:
        Path of the holding module, name of the registry there, the registry, and the part's name in the registry.

    Raises:
        ValueError: If the module lacks the part.
    """
    at, _, name = path.rpartition(".")
    holder = vars(module.get_submodule(at))
    registry = next((r for r in ("_modules", "_parameters", "_buffers") if name in holder[r]), None)
    if registry is None:
        raise ValueError(f"Expected a part of this {type(module).__name__}, but got '{path}'. Name one that it holds.")
    return at, registry, holder[registry], name


def put_part(module: nn.Module, path: str, part: nn.Module | Tensor) -> None:
    """Put back a part removed by `install`; restored children come last."""
    at, _, name = path.rpartition(".")
    holder = module.get_submodule(at)
    if isinstance(part, nn.Module):
        holder._modules[name] = part
        return
    _, _, registry, _ = place_of(module, path)
    registry[name] = part


def _named(module: nn.Module) -> str:
    return f"this {type(module).__name__}"


def _share(module: nn.Module) -> nn.Module:
    """Copy a module; the copy shares children, parameters, buffers and hooks."""
    new: nn.Module = object.__new__(type(module))
    vars(new).update(vars(module))
    for name in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
        vars(new)[name] = copy.copy(vars(module)[name])
    vars(new).pop("_compiled_call_impl", None)  # the compiled call would run the original
    return new


def _read(graph: fx.Graph) -> list[str]:
    """Return the paths of all children called and all tensors read in a graph."""
    return list(dict.fromkeys(str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")))


def _is_held(module: nn.Module, path: str) -> bool:
    """Whether a path names a child, parameter or buffer rather than a plain attribute."""
    at, _, name = path.rpartition(".")
    holder = module.get_submodule(at)
    return any(name in registry for registry in (holder._modules, holder._parameters, holder._buffers))
