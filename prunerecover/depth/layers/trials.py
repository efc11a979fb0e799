"""Trials of a network without some units, where only a run can tell whether the network's code allows the removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    """Return all output tensors of a network for an example after some edits.

    Args:
        twin: A copy of the network, edited for the run and restored afterwards.
        example: A batch on the network's device.
        edits: Edits in order.

    Raises:
        NotImplementedError: Or any other error raised by the network's own code.
    """
    with edited(twin, edits), evaluating(twin):
        return [leaf for leaf in tree_leaves(call(twin, example)) if isinstance(leaf, Tensor)]


def failure(twin: nn.Module, example: ModelInputs, edits: Sequence[Edit]) -> str:
    """Return why the network does not run on the example after some edits; empty if running. See `outputs_after`."""
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
        example: A batch on the network's device.
        edits: Function that returns the edits of the network run by the block.
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
    """Modules that serve only some units and go with the units: unread, the modules would not train.

    Attributes:
        twin: Copy of the network; see `outputs_after`.
        example: A batch on the network's device.
        graph: Graph of a forward pass.
    """

    twin: nn.Module
    example: ModelInputs
    graph: ComputationGraph
    _known: dict[frozenset[str], tuple[dict[str, StandIn], list[str]]] = field(default_factory=dict)

    def of(self, units: Sequence[GraphUnit]) -> dict[str, StandIn]:
        """Return the stand-ins of the companions of units, by path.

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
        """Return the edit that removes the companions left by the edits of units; none if there are none left.

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
    """Trials in training mode, where a network uses the removed modules otherwise than in evaluation mode.

    Decoders are also run with a cache of keys and values, the default of decoders, which may read modules, too.

    Attributes:
        model: Unwrapped model; never changed.
        example: A batch on the model's device.
        graph: Graph of a forward pass in evaluation mode.
    """

    model: nn.Module
    example: ModelInputs
    graph: ComputationGraph

    def why_not(self, modules: Sequence[str], edits: Callable[[], Sequence[Edit]]) -> str:
        """Return why the network does not train without some modules; empty if training works, or fails before, too.

        Args:
            modules: Paths of the removed modules.
            edits: Function that returns the edits of the removal.
        """
        for one in self._passes:
            if any(map(one.differs, modules)):
                reason = self._failure(edits(), one.inputs)
                if reason and not self._failure([], one.inputs):
                    return reason
        return ""

    @cached_property
    def _passes(self) -> tuple[TrainingPass, ...]:
        keeping = asking_for_cache(self.model, self.example)
        tried = (self.example,) if keeping is None else (self.example, keeping)
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
    """Return the edit that removes an activation."""
    return Bypass(unit=pair.activation, kind="activation", modules={pair.activation: StandIn()})


def merge_edit(pair: LinearPair) -> Merge:
    """Return the edit that merges the linears around an activation."""
    return Merge(into=pair.first, from_=(pair.first, pair.activation, *pair.between, pair.second))


def joinable(
    twin: nn.Module, example: ModelInputs, pairs: Mapping[str, LinearPair]
) -> tuple[dict[str, LinearPair], dict[str, str]]:
    """Leave out pairs of linears whose weights or sizes the network's code reads, besides calling the linears.

    Args:
        twin: Copy of the network; see `outputs_after`.
        example: A batch on the network's device.
        pairs: Pairs by activation.

    Returns:
        The pairs to be merged, and why further pairs must not be merged.
    """
    if not pairs or not _why_two(twin, example, list(pairs.values())):
        return dict(pairs), {}
    reasons = {path: _why_two(twin, example, [pair]) for path, pair in pairs.items()}
    refused = {path: reason for path, reason in reasons.items() if reason}
    return {path: pair for path, pair in pairs.items() if path not in refused}, refused


def _why_two(twin: nn.Module, example: ModelInputs, pairs: Sequence[LinearPair]) -> str:
    """Return why pairs of adjacent linears must stay two; empty if mergeable."""
    bypassed: list[Edit] = [bypass(pair) for pair in pairs]
    merged: list[Edit] = [*bypassed, *(merge_edit(pair) for pair in pairs)]
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
