"""Modules whose own forward goes without some of its calls: an activation, an addend, a child.

Depth pruning takes out single layers, and the activation behind a layer with it. Where that is a function
(`F.relu(x)`) or a child that is called several times, no submodule can be replaced: the forward of the smallest module
around it is traced with torch.fx, the call taken out, and the code written anew. The module stays of its class, with
its children, parameters, hooks and attributes, and can be copied, pickled, exported and compiled like any other. See
`calls` for the names of calls, `tracing` for what is refused and `in_place` for calls that write into their input.
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
    """What taking out calls does to a module.

    Attributes:
        calls: Their names.
        forward: The code that is left.
        gone: Paths in the module of the children, parameters and buffers that its forward reads no more.
    """

    calls: tuple[str, ...]
    forward: Forward
    gone: tuple[str, ...]


def without_calls(module: nn.Module, calls: Sequence[str]) -> nn.Module:
    """Return a module that does what this one does, without some calls of its own forward.

    Each named call hands its first tensor on, and a sum or list goes without a named operand: of `x + f(x)` without
    "add:0[1]", x is left. What the forward called or read before and now does not is gone from the module, with its
    parameters; children that it never called stay. Calls that write into their input are made to return a new tensor.

    Args:
        module: Left as it is. The new one shares its children, parameters, buffers and hooks.
        calls: Names as in `prunerecover.surgery.forward.calls`, all of the forward as it is now.

    Returns:
        An instance of the same class in the same mode.

    Raises:
        ValueError: If the forward cannot be traced, or makes no such call.

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


def check_rewritable(module: nn.Module) -> None:
    """Raise ValueError with the reason if a module's own forward cannot be rewritten; nothing is changed."""
    where = _named(module)
    make_functional(trace_forward(module, where).graph, module, where)


def calls_of(module: nn.Module) -> tuple[str, ...]:
    """Return the names of all calls in a module's own forward, in the order of execution.

    Raises:
        ValueError: If the forward cannot be traced.

    >>> calls_of(nn.TransformerEncoderLayer(4, 1, 4).linear1)
    ('linear:0',)
    """
    return tuple(named_calls(trace_forward(module, _named(module)).graph, module))


def find_rewriting(module: nn.Module, calls: Sequence[str], where: str = "") -> Rewriting:
    """Find what taking out calls does to a module, which is not changed.

    Args:
        module: Any with a forward of its own.
        calls: As in `without_calls`.
        where: What messages call the module; its class if not given.

    Raises:
        ValueError: If the forward cannot be traced, or makes no such call.
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
    """Give a module its new forward, and take out what that reads no more; in a list, an identity keeps the numbers."""
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
    """Return where a part of a module is.

    Args:
        module: That holds it, itself or in a child.
        path: Of a child, parameter or buffer.

    Returns:
        Path of the module that holds it, the name of the registry there, the registry itself, and the name in it.

    Raises:
        ValueError: If there is no such part.
    """
    at, _, name = path.rpartition(".")
    holder = vars(module.get_submodule(at))
    registry = next((r for r in ("_modules", "_parameters", "_buffers") if name in holder[r]), None)
    if registry is None:
        raise ValueError(f"Expected a part of this {type(module).__name__}, but got '{path}'. Name one that it holds.")
    return at, registry, holder[registry], name


def put_part(module: nn.Module, path: str, part: nn.Module | Tensor) -> None:
    """Put back what `install` took out; children that are put back come last."""
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
    """Copy a module that goes on holding the same children, parameters, buffers and hooks."""
    new: nn.Module = object.__new__(type(module))
    vars(new).update(vars(module))
    for name in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
        vars(new)[name] = copy.copy(vars(module)[name])
    vars(new).pop("_compiled_call_impl", None)  # it would call the one that was copied
    return new


def _read(graph: fx.Graph) -> list[str]:
    """Return the paths of all children that a graph calls, and of all tensors that it reads."""
    return list(dict.fromkeys(str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")))


def _is_held(module: nn.Module, path: str) -> bool:
    """Whether a path is that of a child, parameter or buffer, not of another attribute."""
    at, _, name = path.rpartition(".")
    holder = module.get_submodule(at)
    return any(name in registry for registry in (holder._modules, holder._parameters, holder._buffers))
