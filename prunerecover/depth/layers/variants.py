"""Variants of a network without some of its units, judged by the divergence of their output or by their loss."""

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
Move = tuple[Unit, ...]


@dataclass(frozen=True)
class _Base:
    """The network that variants are compared with: what is gone from it, and what tells it from others."""

    key: frozenset[str]
    signature: Signature


class Variants:
    """Judges sets of units by the network without them, beside the dense one.

    Args:
        removals: All that can go.
        objective: What networks are judged by; "divergence" below is its value, whatever it is.
        store: Of the search; None: nothing is kept.

    Attributes:
        runner: Counts what was computed.
        refused: Why the last set that cannot go cannot, or "".
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
        """Return how much worse the network is without some units, by the objective.

        Raises:
            NotRemovable: If the widths around a layer cannot be reconciled.
        """
        return self._divergence(units, None)

    def held_out(self, units: Sequence[Unit]) -> float:
        """Return the divergence without some units on the samples that nothing is fitted to.

        It is infinite if they cannot go, or if the output has another shape then, as that of detections may have.
        """
        try:
            return self._measured(units, self.objective.few, None)
        except (NotRemovable, OtherShape):
            return math.inf

    def rough(self, moves: Sequence[Move]) -> list[float]:
        """Return about the divergence without the units of each move, on a few samples; infinite if they cannot go."""

        def judged(move: Move) -> float:
            measure = partial(self._measured, move, self.objective.few, ())
            return self.store.result("rough", sorted(names_of(move)), measure)

        return self._each(moves, judged)

    def scores(self, gone: Sequence[Unit], moves: Sequence[Move]) -> list[float]:
        """Return the divergence without the units that are gone and those of each move; infinite if they cannot go.

        Raises:
            ValueError: If a divergence is NaN.
        """
        return self._each(moves, lambda move: self._divergence((*gone, *move), gone))

    def _rebase(self, units: Sequence[Unit]) -> None:
        """Compare variants with the network without these units from now on: they share what comes first with it."""
        if names_of(units) != self._base.key:
            with self.removals.trying(units), self._without(units) as signature:
                for _ in self.runner.keep(self._twin, self._first_change(signature)):
                    pass
            self._base = _Base(names_of(units), signature)

    def _divergence(self, units: Sequence[Unit], base: Sequence[Unit] | None) -> float:
        """Return the divergence without some units, once it is measured beside the network without those of a base."""
        key = names_of(units)
        if key not in self._known:
            measure = partial(self._measured, units, self.objective.all, base)
            self._known[key] = self.store.result("divergence", sorted(key), measure)
        return self._known[key]

    def _measured(self, units: Sequence[Unit], numbers: Sequence[int], base: Sequence[Unit] | None) -> float:
        """Judge the network without some units on some batches.

        Args:
            units: That are gone.
            numbers: Of the batches.
            base: What is gone from the network that it shares its beginning with; None: as before.
        """
        if base is not None:
            self._rebase(base)
        with self.removals.trying(units), self._without(units) as signature:
            return self.objective.judge(numbers, self.runner.run(self._twin, self._first_change(signature), numbers))

    def _each(self, moves: Sequence[Move], score: Callable[[Move], float]) -> list[float]:
        """Score moves; infinite for those that cannot go, and NaN is refused."""
        found = []
        with progress("ranking units", len(moves)) as advance:
            for move in moves:
                try:
                    found.append(score(move))
                except NotRemovable as error:
                    self.refused = f"{error} "
                    found.append(math.inf)
                advance()
        named = {", ".join(unit.name for unit in move): one for move, one in zip(moves, found, strict=True)}
        check_finite({name: one for name, one in named.items() if one != math.inf}, self.objective.name)
        return found

    @contextmanager
    def _without(self, units: Sequence[Unit]) -> Iterator[Signature]:
        """Take units out of the twin inside a `with` block; yields what tells the network that is left from others."""
        edits = self.removals.edits(units, in_place=True)
        with edited(self._twin, edits, tensors_of(edits, self.removals.fits)) as applied:
            yield _signature(self._twin, applied)

    def _first_change(self, signature: Signature) -> int:
        """Return the index of the first node that is not computed as in the base."""
        old = self._base.signature
        changed = [path for path in old.keys() | signature.keys() if old.get(path) != signature.get(path)]
        return min((self._first_node(path) for path in changed), default=len(self.removals.graph.nodes))

    def _first_node(self, path: str) -> int:
        """The first node inside a module; of one that nothing calls, inside the module around it."""
        while path:
            inside = [i for module, i in self._nodes.items() if is_within(module, path)]
            if inside:
                return min(inside)
            path = parent_path(path)
        return 0


def _signature(network: nn.Module, applied: Applied) -> Signature:
    """Tell, by module, what it is and which tensors it holds, cut in which way."""
    found: Signature = {}
    for path, module in network.named_modules():
        held = (*module._parameters.items(), *module._buffers.items())
        told = _value if isinstance(module, Affine | Constant | SlopeBias) else partial(_identity, applied=applied)
        tensors = tuple((name, *told(tensor)) for name, tensor in held if tensor is not None)
        found[path] = (type(module).__name__, getattr(module, "rerouted", ()), tensors)
    return found


def _value(tensor: Tensor) -> tuple[float, float]:
    """Tell fitted tensors apart, which are made anew each time."""
    values = tensor.detach().double()
    return float(values.sum()), float(values.square().sum())


def _identity(tensor: Tensor, applied: Applied) -> tuple[Any, ...]:
    old, cuts = applied.cuts.get(tensor, (tensor, ()))  # type: ignore[call-overload]
    return id(old), tuple((cut.dim, tuple(cut.kept.tolist())) for cut in cuts)
