"""Variants of a network without some units, judged by output divergence or by a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from prunerecover.calibration.places import tensors_of
from prunerecover.depth.layers.prefix import PrefixRunner
from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.search.objectives import Objective
from prunerecover.display.progress import progress
from prunerecover.divergence.outputs import OtherShape
from prunerecover.importance.registry import check_finite
from prunerecover.model.copies import share_copy
from prunerecover.model.paths import is_within, parent_path
from prunerecover.model.replacements import Affine, Constant, SlopeBias
from prunerecover.plan.units import Unit, names_of
from prunerecover.store.search_store import SearchStore
from prunerecover.surgery.apply_edits import Applied, edited

Signature = dict[str, Any]


@dataclass(frozen=True)
class _Base:
    """Network with the shared beginning of variants: names of the removed units, and the signature."""

    key: frozenset[str]
    signature: Signature


class Variants:
    """Judge of sets of units, by the network without the units, beside the dense network.

    Args:
        removals: Units of the network.
        objective: Measure of networks; "divergence" below is its value, also of a loss.
        store: Store of the search; None: no results are kept.

    Attributes:
        runner: Runner of variants behind their first change.
        refused: Reason why the last refused set cannot go, or "".
    """

    def __init__(self, removals: Removals, objective: Objective, store: SearchStore | None = None) -> None:
        self.removals, self.objective, self.refused = removals, objective, ""
        self.store = store or SearchStore()
        self.runner = PrefixRunner(removals.graph, len(objective.all), objective.run)
        self._nodes: dict[str, int] = {}
        for node in reversed(removals.graph.nodes):
            self._nodes |= dict.fromkeys((node.module, *(w.rpartition(".")[0] for w in node.weights)), node.index)
        self._known: dict[frozenset[str], float] = {frozenset(): 0.0}
        self._twin = share_copy(removals.model).eval()
        self._base = _Base(frozenset(), _signature(self._twin, Applied()))
        objective.start(removals.model, self.runner.keep(self._twin))

    def divergence(self, units: Sequence[Unit]) -> float:
        """Return the objective's value for the network without some units: higher is worse.

        Raises:
            NotRemovable: If the widths around a layer cannot be reconciled.
        """
        return self._divergence(units, None)

    def held_out(self, units: Sequence[Unit]) -> float:
        """Return the divergence without some units on held-out samples, which no replacement is fitted to.

        The divergence is infinite if the units cannot go, or if the output changes shape, as detections may.
        """
        try:
            return self._measured(units, self.objective.few, None)
        except (NotRemovable, OtherShape):
            return math.inf

    def rough(self, units: Sequence[Unit]) -> list[float]:
        """Return the rough divergence without each unit alone, on a few samples; infinite for refused units."""

        def judged(unit: Unit) -> float:
            measure = partial(self._measured, (unit,), self.objective.few, ())
            return self.store.result("rough", (unit.name,), measure)

        return self._each(units, judged)

    def scores(self, gone: Sequence[Unit], units: Sequence[Unit]) -> list[float]:
        """Return the divergence without removed units and each unit; infinite for refused units.

        Raises:
            ValueError: If a divergence is NaN.
        """
        return self._each(units, lambda unit: self._divergence((*gone, unit), gone))

    def _rebase(self, units: Sequence[Unit]) -> None:
        """Make the network without some units the base, so that later variants share its beginning."""
        if names_of(units) != self._base.key:
            with self.removals.trying(units), self._without(units) as signature:
                for _ in self.runner.keep(self._twin, self._first_change(signature)):
                    pass
            self._base = _Base(names_of(units), signature)

    def _divergence(self, units: Sequence[Unit], base: Sequence[Unit] | None) -> float:
        """Return the divergence without some units, measured once, from the network without the units of a base on."""
        key = names_of(units)
        if key not in self._known:
            measure = partial(self._measured, units, self.objective.all, base)
            self._known[key] = self.store.result("divergence", sorted(key), measure)
        return self._known[key]

    def _measured(self, units: Sequence[Unit], numbers: Sequence[int], base: Sequence[Unit] | None) -> float:
        """Judge the network without some units on some batches.

        Args:
            units: Removed units.
            numbers: Numbers of the batches.
            base: Removed units of the base; None: the present base.
        """
        if base is not None:
            self._rebase(base)
        with self.removals.trying(units), self._without(units) as signature:
            return self.objective.judge(numbers, self.runner.run(self._twin, self._first_change(signature), numbers))

    def _each(self, units: Sequence[Unit], score: Callable[[Unit], float]) -> list[float]:
        """Score units; infinite for refused units, and NaN raises an error."""
        found = []
        with progress("ranking units", len(units)) as advance:
            for unit in units:
                try:
                    found.append(score(unit))
                except NotRemovable as error:
                    self.refused = f"{error} "
                    found.append(math.inf)
                advance()
        named = zip(units, found, strict=True)
        check_finite({unit.name: one for unit, one in named if one != math.inf}, self.objective.name)
        return found

    @contextmanager
    def _without(self, units: Sequence[Unit]) -> Iterator[Signature]:
        """Take units out of the twin inside a `with` block; yields the signature of the remaining network."""
        edits = self.removals.edits(units, in_place=True)
        with edited(self._twin, edits, tensors_of(edits, self.removals.fits)) as applied:
            yield _signature(self._twin, applied)

    def _first_change(self, signature: Signature) -> int:
        """Return the index of the first node that is not computed as in the base."""
        old = self._base.signature
        changed = [path for path in old.keys() | signature.keys() if old.get(path) != signature.get(path)]
        return min((self._first_node(path) for path in changed), default=len(self.removals.graph.nodes))

    def _first_node(self, path: str) -> int:
        """Return the first node inside a module; for a module without a call, inside the module around."""
        while path:
            inside = [i for module, i in self._nodes.items() if is_within(module, path)]
            if inside:
                return min(inside)
            path = parent_path(path)
        return 0


def _signature(network: nn.Module, applied: Applied) -> Signature:
    """Return the class of each module by path, with its tensors and their cuts."""
    found: Signature = {}
    for path, module in network.named_modules():
        held = (*module._parameters.items(), *module._buffers.items())
        told = _value if isinstance(module, Affine | Constant | SlopeBias) else partial(_identity, applied=applied)
        tensors = tuple((name, *told(tensor)) for name, tensor in held if tensor is not None)
        found[path] = (type(module).__name__, getattr(module, "rerouted", ()), tensors)
    return found


def _value(tensor: Tensor) -> tuple[float, float]:
    """Return sums that differ between fitted tensors, whose identity changes with every edit."""
    values = tensor.detach().double()
    return float(values.sum()), float(values.square().sum())


def _identity(tensor: Tensor, applied: Applied) -> tuple[Any, ...]:
    old, cuts = applied.cuts.get(tensor, (tensor, ()))  # type: ignore[call-overload]
    return id(old), tuple((cut.dim, tuple(cut.kept.tolist())) for cut in cuts)
