"""Try a network without some of its units, where only a run can tell whether its own code allows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from prunerecover.depth.layers.patching import Dropped, patches
from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.graph.activations import LinearPair
from prunerecover.graph.branches import GraphUnit
from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.graph.feeders import Feeders
from prunerecover.graph.training import TrainingPass, train_once, training_pass
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.copies import apart_copy
from prunerecover.model.evaluation import evaluating
from prunerecover.model.key_values import asking_for_cache
from prunerecover.model.paths import is_within
from prunerecover.plan.edit_parts import StandIn
from prunerecover.plan.edits import Bypass, Edit, Merge, Patch
from prunerecover.refusal import Refusal
from prunerecover.surgery.apply_edits import apply_edits, edited

ROUNDING = 100  # machine epsilons, relative to the largest output


def outputs_after(twin: nn.Module, example: ModelInputs, edits: Sequence[Edit]) -> list[Tensor]:
    """Return all tensors that a network puts out for an example after some edits.

    Args:
        twin: A copy of the network that takes edits, and is as it was again afterwards.
        example: One batch on its device.
        edits: In order.

    Raises:
        NotImplementedError: Or whatever else the network's own code raises.
    """
    with edited(twin, edits), evaluating(twin):
        return [leaf for leaf in tree_leaves(call(twin, example)) if isinstance(leaf, Tensor)]


def failure(twin: nn.Module, example: ModelInputs, edits: Sequence[Edit]) -> str:
    """Return why the network does not run on the example after some edits; empty if it does. See `outputs_after`."""
    try:
        outputs_after(twin, example, edits)
    except Exception as error:  # whatever the network's own code raises
        return _told(error)
    return ""


@contextmanager
def trying(twin: nn.Module, example: ModelInputs, edits: Callable[[], Sequence[Edit]]) -> Iterator[None]:
    """Raise NotRemovable in the place of an error inside a `with` block if the network does not run after some edits.

    Args:
        twin: See `outputs_after`.
        example: One batch on its device.
        edits: Returns the edits of the network that the block runs.
    """
    try:
        yield
    except (NotRemovable, Refusal, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever the network's own code raises
        reason = failure(twin, example, edits())
        if not reason:
            raise
        raise NotRemovable(f"Expected units that can go, but {reason}.") from error


@dataclass
class Companions:
    """Modules that serve units alone, and go with them: nothing would read them any more, and they would not train.

    Attributes:
        twin: See `outputs_after`.
        example: One batch on its device.
        graph: Of one forward pass.
    """

    twin: nn.Module
    example: ModelInputs
    graph: ComputationGraph
    _known: dict[frozenset[str], tuple[dict[str, StandIn], list[str]]] = field(default_factory=dict)

    def of(self, units: Sequence[GraphUnit]) -> dict[str, StandIn]:
        """Return what stands in for them, by path.

        Raises:
            NotRemovable: If parameters would stay without gradients all the same.
        """
        key = frozenset(unit.name for unit in units)
        if key not in self._known:
            self._known[key] = self._found(units) if units else ({}, [])
        found, dead = self._known[key]
        if dead:
            others = f" and {len(dead) - 1} more" if len(dead) > 1 else ""
            why = f"'{dead[0]}'{others} would get no gradient any more, for only what goes reads it"
            raise NotRemovable(f"{why}; narrow it.")
        return found

    def patch(self, units: Sequence[GraphUnit], edits: Sequence[Edit]) -> list[Edit]:
        """Return the edit that takes them out beside edits that take units out; none if these reach them all.

        Raises:
            NotRemovable: If parameters would stay without gradients all the same.
        """
        taken = [path for edit in edits if isinstance(edit, Bypass | Patch) for path in edit.modules]
        left = {path: one for path, one in self.of(units).items() if not any(is_within(path, own) for own in taken)}
        return [Patch(modules=left)] if left else []

    def _found(self, units: Sequence[GraphUnit]) -> tuple[dict[str, StandIn], list[str]]:
        taken_out = [path for unit in units for path in unit.modules]
        taken_out += patches(self.graph, frozenset(), Dropped.of(self.graph, units))
        serving = self._feeders.serving(units, taken_out)
        found = {path: StandIn() for path in serving.values() if path}
        edits: list[Edit] = [one.bypass for one in units]
        runs = not found or not failure(self.twin, self.example, [*edits, Patch(modules=found)])
        return found, [name for name, path in serving.items() if not path or not runs]

    @cached_property
    def _feeders(self) -> Feeders:
        return Feeders(self.twin, self.graph)


@dataclass(frozen=True)
class TrainingTrials:
    """Trials in training mode of what a network does otherwise there with the modules that go.

    It is run once more to keep what a next call needs, as decoders do by default: that may read modules, too.

    Attributes:
        model: Unwrapped; it is not changed.
        example: One batch on its device.
        graph: Of a forward pass in evaluation mode.
    """

    model: nn.Module
    example: ModelInputs
    graph: ComputationGraph

    def why_not(self, modules: Sequence[str], edits: Callable[[], Sequence[Edit]]) -> str:
        """Return why the network does not train without some modules; empty if it does, or does not as it is.

        Args:
            modules: Paths of those that go.
            edits: Returns the edits that take them out.
        """
        for one in self._passes:
            if any(map(one.differs, modules)):
                reason = self._failure(edits(), one.inputs)
                if reason and not self._failure([], one.inputs):
                    return reason
        return ""

    @cached_property
    def _passes(self) -> tuple[TrainingPass, ...]:
        keeping = asking_for_cache(self.model, self.example.kwargs)
        tried = (self.example,) if keeping is None else (self.example, replace(self.example, kwargs=keeping))
        return tuple(filter(None, (training_pass(self.model, inputs, self.graph) for inputs in tried)))

    def _failure(self, edits: Sequence[Edit], inputs: ModelInputs) -> str:
        trial = apart_copy(self.model)
        apply_edits(trial, edits)
        try:
            train_once(trial, inputs)
        except Exception as error:  # whatever the network's own code raises
            return _told(error, "train")
        return ""


def _told(error: Exception, does: str = "run") -> str:
    return f"the network does not {does} without it ({type(error).__name__}: {str(error)[:100]}); narrow it instead"


def bypass(pair: LinearPair) -> Bypass:
    """Return the edit that takes an activation out."""
    return Bypass(unit=pair.activation, kind="activation", modules={pair.activation: StandIn()})


def merge(pair: LinearPair) -> Merge:
    """Return the edit that makes the linears around an activation one."""
    return Merge(into=pair.first, from_=(pair.first, pair.activation, *pair.between, pair.second))


def joinable(
    twin: nn.Module, example: ModelInputs, pairs: Mapping[str, LinearPair]
) -> tuple[dict[str, LinearPair], dict[str, str]]:
    """Leave out pairs of linears that the network's code does not only call: it may look at their weights or sizes.

    Args:
        twin: See `outputs_after`.
        example: One batch on its device.
        pairs: By activation.

    Returns:
        The pairs that may become one linear, and why the others may not.
    """
    if not pairs or not _why_two(twin, example, list(pairs.values())):
        return dict(pairs), {}
    reasons = {path: _why_two(twin, example, [pair]) for path, pair in pairs.items()}
    refused = {path: reason for path, reason in reasons.items() if reason}
    return {path: pair for path, pair in pairs.items() if path not in refused}, refused


def _why_two(twin: nn.Module, example: ModelInputs, pairs: Sequence[LinearPair]) -> str:
    """Return why pairs of linears with nothing between them must stay two; empty if they may become one."""
    bypassed: list[Edit] = [bypass(pair) for pair in pairs]
    merged: list[Edit] = [*bypassed, *(merge(pair) for pair in pairs)]
    try:
        one, two = (outputs_after(twin, example, edits) for edits in (merged, bypassed))
    except Exception as error:  # whatever the network's own code raises
        return _told(error)
    if all(map(_same, two, one)):
        return ""
    return "the network computes something else once the linears around it are one; have its code not read their sizes"


def _same(two: Tensor, one: Tensor) -> bool:
    if two.shape != one.shape or not two.is_floating_point():
        return two.shape == one.shape
    if not two.numel() or two.is_meta:
        return True
    close = ROUNDING * torch.finfo(two.dtype).eps * two.abs().amax()
    return bool((two - one).abs().amax() <= close) or not bool(two.isfinite().all())
