"""Checks of any network without some units: forward, backward, and the predicted size."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import torch
from cases.depth.architectures import ARCHITECTURES
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from prunerecover import Plan
from prunerecover.depth.layers.patching import NOTHING_DROPPED, Dropped, patches
from prunerecover.depth.layers.pruned_graph import NotRemovable, PrunedGraph
from prunerecover.depth.layers.removals import Removals
from prunerecover.families.describe import describe, is_supported
from prunerecover.graph.trace import trace
from prunerecover.model.batches import ModelInputs, as_inputs, call
from prunerecover.model.copies import deep_copy
from prunerecover.model.evaluation import evaluating
from prunerecover.plan.edits import Bypass
from prunerecover.plan.units import Unit
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.provenance import plan_for

GRAPH_KINDS = ("block", "attention", "mlp", "layer")


def removals_of(model: nn.Module, batch: Any, kinds: Sequence[str] = GRAPH_KINDS, **options: Any) -> Removals:
    """Return the removals of a network."""
    with evaluating(model):
        return Removals(model, trace(model, as_inputs(batch)), kinds, **options)


@lru_cache(maxsize=4)
def removals_in(name: str, kinds: tuple[str, ...] = GRAPH_KINDS, **options: Any) -> Removals:
    """Return the removals of an architecture in `ARCHITECTURES`, traced once for consecutive tests."""
    return removals_of(*ARCHITECTURES[name](), kinds, **options)


def outputs(model: nn.Module, inputs: ModelInputs | Any) -> list[Tensor]:
    """Return all floating-point output tensors of a network."""
    found = call(model, inputs if isinstance(inputs, ModelInputs) else as_inputs(inputs))
    return [t for t in tree_leaves(found) if isinstance(t, Tensor) and t.is_floating_point()]


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def pruned(removals: Removals, units: Sequence[Unit]) -> nn.Module:
    """A copy of the network without some units."""
    model = deep_copy(removals.model)
    apply_edits(model, removals.edits(units))
    return model.eval()


def learns(model: nn.Module, inputs: ModelInputs) -> None:
    """Run forward and backward in training mode, with norms' statistics fixed."""
    model.train()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
    sum(out.float().sum() for out in outputs(model, inputs) if out.requires_grad).backward()  # type: ignore[union-attr]
    model.zero_grad()
    model.eval()


def predicted(removals: Removals, units: Sequence[Unit]) -> int:
    """Return the number of remaining parameters, from the graph's widths alone."""
    branches = [unit for unit in units if unit.kind != "layer"]
    found = [removals._branches[unit.name] for unit in branches if unit.name in removals._branches]
    blocks = tuple(unit.name for unit in found if unit.kind == "block")
    state = removals.after(tuple(unit.name for unit in units if unit.kind == "layer"), blocks)
    paths = [path for unit in branches for path in unit.targets]
    companions = removals._companions.of(found) if found else {}
    gone = tuple(f"{path}." for path in (*paths, *companions, *shared_norms(removals.model, paths)))
    return parameters_left(state, Dropped.of(removals.graph, found), gone)


def parameters_left(state: PrunedGraph, dropped: Dropped = NOTHING_DROPPED, without: tuple[str, ...] = ()) -> int:
    """Return the number of remaining parameters, with further branches, and modules by prefixes of paths, removed."""
    bypassed = {path for edit in state.edits if isinstance(edit, Bypass) for path in edit.modules}
    copies, total = state._copies(dropped), 0
    bypassed |= patches(state.graph, state._handing_on(), dropped, copies.drop, state._pooled()).keys()
    gone = (*(f"{path}." for path in bypassed), *without)
    for name, parameter in state.model.named_parameters():
        if not name.startswith(gone):
            total += prod(len(copies.widths.units(name, dim, size)) for dim, size in enumerate(parameter.shape))
    return total


def shared_norms(model: nn.Module, gone: Sequence[str]) -> list[str]:
    """Return the norms read only by two parallel branches, both removed."""
    blocks = describe(model).blocks if is_supported(model) else ()
    pairs = [(block.attention, block.mlp) for block in blocks if block.attention and block.mlp]
    return [one.reads for one, other in pairs if one.reads and one.path in gone and other.path in gone]


def check_unit(removals: Removals, unit: Unit) -> nn.Module:
    """Remove a unit, and check forward, backward, and the predicted number of parameters."""
    model = pruned(removals, [unit])
    learns(model, removals.example)
    assert size(model) == predicted(removals, [unit])
    if unit.kind != "layer":
        assert size(removals.model) - size(model) == unit.params
    with torch.no_grad():
        before, after = (outputs(m, removals.example) for m in (removals.model, model))
    assert [out.shape for out in before] == [out.shape for out in after]
    return model


def check_sequence(removals: Removals, seed: int, folder: Path) -> list[Unit]:
    """Remove random units, check the training, and the exact restoration from the plan's file."""
    units = random_sequence(removals, 5, seed)
    edits = removals.edits(units)
    left = pruned(removals, units)
    learns(left, removals.example)
    assert size(left) == predicted(removals, units)
    plan_for(removals.model, edits, method="test").save(folder / "plan.json")
    again = deep_copy(removals.model)
    apply_edits(again, Plan.load(folder / "plan.json").edits)
    assert {n: p.shape for n, p in again.named_parameters()} == {n: p.shape for n, p in left.named_parameters()}
    with torch.no_grad():
        made, loaded = outputs(left, removals.example), outputs(again.eval(), removals.example)
    assert all(torch.equal(a, b) for a, b in zip(made, loaded, strict=True))
    return units


def random_sequence(removals: Removals, length: int, seed: int) -> list[Unit]:
    """Draw up to `length` jointly removable units, in the order of removal."""
    drawn = random.Random(seed)
    waiting = list(removals.units)
    drawn.shuffle(waiting)
    taken: list[Unit] = []
    for unit in waiting:
        if len(taken) == length:
            break
        if any(overlap(unit, other) for other in taken):
            continue
        with suppress(NotRemovable):
            removals.edits([*taken, unit])
            taken.append(unit)
    return taken


def overlap(unit: Unit, other: Unit) -> bool:
    """Whether either of two units is inside the other."""

    def inside(a: Unit, b: Unit) -> bool:
        return any(f"{path}.".startswith(f"{own}.") for path in a.targets for own in b.targets)

    return inside(unit, other) or inside(other, unit)
