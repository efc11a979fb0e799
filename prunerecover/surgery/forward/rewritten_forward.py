"""Modules whose forward is rewritten without some of its calls: an activation, an addend, a child.

Depth pruning removes single layers, and the activation behind a layer with the layer. Where the activation is a
function (`F.relu(x)`) or a child with several calls, no submodule can be replaced. The forward of the smallest module
around the activation is traced with torch.fx, the call removed, and the code rewritten. The module keeps the class,
children, parameters, hooks and attributes, and can be copied, pickled, exported and compiled as before. See `calls` for
the names of calls, `tracing` for refusals and `in_place` for in-place calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from prunerecover.model.paths import get_module
from prunerecover.surgery.forward.changes import Change, moved
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


def find_rewriting(module: nn.Module, calls: Sequence[str], where: str = "") -> Rewriting:
    """Compute the change of a module by the removal of calls; the module is not changed.

    Each named call returns the first tensor instead, and a sum or list loses a named operand: `x + f(x)` without
    "add:0[1]" is x. Children and parameters that the forward no longer uses leave the module; children that it never
    called stay. In-place calls return a new tensor instead.

    Args:
        module: Any module with a forward of its own.
        calls: Names as in `prunerecover.surgery.forward.calls`, all for the present forward.
        where: Name of the module in messages; by default the class.

    >>> class Block(nn.Module):
    ...     def forward(self, x):
    ...         return x + x.relu()
    >>> block = Block()
    >>> install(block, find_rewriting(block, ["add:0[1]"]))
    >>> block
    Block(without add:0[1])

    Raises:
        ValueError: If the forward cannot be traced, or lacks a call.
    """
    where = where or f"this {type(module).__name__}"
    graph, settings = trace_forward(module, where)
    read = _read(graph)
    in_place = make_functional(graph, module, where)
    effects = {node for node in graph.nodes if not node.users} | in_place.kept.keys()
    take_out(graph, module, calls, where)
    graph.eliminate_dead_code(lambda node: node in effects or node.op in ("placeholder", "output"))
    copy_where_needed(graph, module, in_place)
    left = _read(graph)
    gone = [path for path in read if not any(f"{other}.".startswith(f"{path}.") for other in left)]
    gone = [
        path for path in gone if not any(path.startswith(f"{other}.") for other in gone) and place_of(module, path)[1]
    ]
    settings |= module.code.settings if isinstance(module, RewrittenForward) else frozenset()
    return Rewriting(tuple(calls), code_of(graph, settings), tuple(gone))


def install(module: nn.Module, rewriting: Rewriting) -> None:
    """Set a module's new forward and remove unread parts; in a list, an identity keeps the numbers."""
    for path in rewriting.gone:
        at, registry, name = place_of(module, path)
        around = module.get_submodule(at)
        holder = vars(around)[registry]
        if registry != "_modules":
            holder[name] = None
        elif isinstance(around, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            holder[name] = nn.Identity()
        else:
            del holder[name]
    original, _, earlier = forward_of(module)
    set_forward(module, original, rewriting.forward, (*earlier, *rewriting.calls))


def place_of(module: nn.Module, path: str) -> tuple[str, str, str]:
    """Return the place of a part of a module: path of the holder, name of the registry ("" for none), and own name."""
    at, _, name = path.rpartition(".")
    held = vars(module.get_submodule(at))
    return at, next((r for r in ("_modules", "_parameters", "_buffers") if name in held[r]), ""), name


@dataclass(frozen=True)
class Rerouted(Change):
    """Removal of calls from the forward of the module at `path`, with the removed parts.

    Attributes:
        path: Path of the module.
        original: Class before any removal of calls.
        code: Previous code of the forward; None: the code of the class.
        rerouted: Calls removed before.
        gone: Removed children, parameters and buffers, by place in the module; see `place_of`.
        training: Whether the module was in training mode.
        orders: Previous order of names at the places of the parts, by path of the holder and name of the registry.
    """

    path: str
    original: type[nn.Module]
    code: Forward | None
    rerouted: tuple[str, ...]
    gone: dict[tuple[str, str, str], nn.Module | Tensor]
    training: bool
    orders: dict[tuple[str, str], tuple[str, ...]]

    @property
    def parts(self) -> Iterable[Any]:
        """The removed parts."""
        return self.gone.values()

    def undo(self, model: nn.Module, device: torch.device) -> None:
        """Restore the parts and the forward of the module."""
        module = get_module(model, self.path)
        for (at, registry, name), part in self.gone.items():
            if isinstance(part, nn.Module) and self.training != module.training:  # else each part keeps its own mode
                part.train(module.training)
            vars(module.get_submodule(at))[registry][name] = moved(part, device)
        for (at, registry), names in self.orders.items():
            held = vars(module.get_submodule(at))[registry]
            entries = [(name, held[name]) for name in names]
            held.clear()
            held.update(entries)
        set_forward(module, self.original, self.code, self.rerouted)


def reroute(model: nn.Module, path: str, calls: Sequence[str], journal: list[Any]) -> None:
    """Remove calls from the forward of a module.

    Args:
        model: Network without wrappers.
        path: Path of the module; the empty path is the model itself.
        calls: Names of calls, see `find_rewriting`.
        journal: List of changes; the removal is added first.

    Raises:
        ValueError: If the module is missing, or its forward cannot be traced or lacks a call.
    """
    module = get_module(model, path)
    rewriting = find_rewriting(module, calls, f"'{path}'" if path else "")
    holders = {
        place: vars(module.get_submodule(place[0]))[place[1]]
        for place in (place_of(module, part) for part in rewriting.gone)
    }
    gone = {place: holder[place[2]] for place, holder in holders.items()}
    orders = {place[:2]: tuple(holder) for place, holder in holders.items()}
    journal.append(Rerouted(path, *forward_of(module), gone, module.training, orders))
    install(module, rewriting)


def _read(graph: fx.Graph) -> list[str]:
    """Return the paths of all children called and all tensors read in a graph."""
    return list(dict.fromkeys(str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")))
