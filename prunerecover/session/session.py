"""Session of a surgery: a network to plan for, with samples, dense outputs and costs."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.calibration.samples import CalibrationSet, split_batches
from prunerecover.cost.units.clock_names import clock_name
from prunerecover.cost.units.serving import Serving
from prunerecover.display.progress import progress
from prunerecover.divergence.registry import chosen_divergence
from prunerecover.families.libraries.offloaded_weights import map_offloaded
from prunerecover.graph.trace import Traced, trace
from prunerecover.importance.measuring.losses import Loss, check_loss
from prunerecover.model.batches import (
    Batches,
    ModelInputs,
    as_inputs,
    call,
    listed,
    on_device,
    predictions_of,
    with_samples,
    without_labels,
)
from prunerecover.model.checks import check_call, check_network, check_plannable
from prunerecover.model.copies import hooked_copy, share_copy
from prunerecover.model.evaluation import device_of, inputs_of, ordinary_arithmetic, plain_evaluation
from prunerecover.model.paths import unwrap
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Edit
from prunerecover.recovery.dense_reference import fresh_statistics, give_statistics
from prunerecover.session.pruned_output import PrunedOutput, judge_of
from prunerecover.session.standing_in import bound_to
from prunerecover.store.search_store import SearchStore
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.saved_cost import DenseCost

Further = Callable[[int], Sequence[Any]]
TIMED = 4  # samples, run twice: the first run is often slower


class Session:
    """Shared state of planning, feasibility, fitting and judging; a session per surgery.

    The network is a copy that shares all tensors with the user's module, which is never edited. Results are kept: the
    weights must stay the same during the session.

    Args:
        model: Any network, wrapped or not.
        batches: Calibration batches; see `plan_depth` and `plan_width`.
        loss: Loss function `loss(model, batch) -> scalar`, which may refer to the user's network.
        seed: Seed of the choice of held-out samples, and of all random numbers.
        further: Function from a number of samples to further batches of about so many samples; None: there are none.

    Attributes:
        model: Copy of the network.
        batches: All batches, as given.
        loss: Loss function, bound to the copy; None: not given.
        seed: Seed.

    Raises:
        ValueError: If the network cannot be planned for whatever the inputs, or there is no sample.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        *,
        loss: Loss | None = None,
        seed: int = 0,
        further: Further | None = None,
    ) -> None:
        network = unwrap(model)
        check_network(network)
        self.model = hooked_copy(network)
        map_offloaded(self.model)
        check_plannable(self.model)
        self.batches: Sequence[Any] = with_samples(listed(batches))
        self.seed = seed
        self.loss = None if loss is None else bound_to(network, loss)
        self._costs: dict[str, DenseCost] = {}
        self._serving = Serving()
        self._further = further
        self._rest: Sequence[Any] = ()
        self._drawn: tuple[int, Sequence[Any]] = 0, ()  # the most that were asked for so far

    @classmethod
    def with_dense_reference(
        cls, model: nn.Module, batches: Batches, *, loss: Loss | None = None, seed: int = 0
    ) -> Session:
        """Return a session with BatchNorm statistics that match the weights; see `recovery.dense_reference`.

        Args:
            model: Network, see `Session`.
            batches: Calibration batches.
            loss: Loss function.
            seed: Seed.
        """
        session = cls(model, batches, loss=loss, seed=seed)
        session.take_statistics(fresh_statistics(session.model, session.batches, session.loss))
        return session

    def on_first(self, most: int) -> Session:
        """Return the session on the first samples alone; the rest are further samples.

        Args:
            most: Number of samples, exceeded by less than a batch.
        """
        seen = [*accumulate((self.inputs(batch).n_samples for batch in self.batches), initial=0)][:-1]
        first = sum(before < most for before in seen)
        if first == len(self.batches):
            return self
        other = copy.copy(self)
        for name in ("samples", "output", "pass_seconds"):
            vars(other).pop(name, None)
        other.batches, other._rest = self.batches[:first], self.batches[first:]
        return other

    def take_statistics(self, statistics: Mapping[str, Tensor]) -> None:
        """Set BatchNorm statistics of the copy, by buffer name; to be called before any computation."""
        give_statistics(self.model, statistics)

    def pruned(self, edits: Sequence[Edit], tensors: Mapping[str, Tensor]) -> Session:
        """Return the session of the network with some edits, on the same samples.

        Args:
            edits: Edits, in order.
            tensors: Fitted tensors of the edits, by key.
        """
        network = share_copy(self.model)
        apply_edits(network, edits, tensors)
        return self.of(network)

    def of(self, copied: nn.Module) -> Session:
        """Return the session of another copy of the network, on the same samples.

        Args:
            copied: Copy to plan for, perhaps pruned; not copied again.
        """
        other = copy.copy(self)
        for name in ("first", "example", "traced", "output"):
            vars(other).pop(name, None)
        other.model, other.samples, other._costs = copied, self.samples, {}
        return other

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return device_of(self.model)

    def evaluating(self) -> AbstractContextManager[None]:
        """Evaluate the network inside a `with` block; see `plain_evaluation`."""
        return plain_evaluation(self.model)

    def begin(self, store: SearchStore, *about: object) -> None:
        """Tell a store the inputs of a search in the session.

        Args:
            store: Store of the search.
            about: Inputs of the search beside the network, the samples and the comparison of outputs.

        Raises:
            ValueError: See `SearchStore.begin`.
            OSError: See `SearchStore.begin`.
        """
        seen = {"output": lambda: predictions_of(call(self.model, self.example))}
        if (loss := self.loss) is not None:
            seen["loss"] = lambda: check_loss(loss(self.model, on_device(self.batches[0], self.device)))
        with self.evaluating():
            torch.manual_seed(self.seed)  # a loss may draw noise
            about = (*about, self.batches, *self._rest, chosen_divergence(), clock_name(self._serving.clock))
            store.begin(self.model, *about, seen=seen)

    @cached_property
    def first(self) -> ModelInputs:
        """First batch, without labels, on the device: the batch for latency measurements."""
        with ordinary_arithmetic():
            return self.inputs(self.batches[0])

    @cached_property
    def example(self) -> ModelInputs:
        """First sample, checked by a pass through the network.

        Raises:
            ValueError: If the network fails on the sample.
        """
        with self.evaluating(), progress("running the dense network"):
            sample = self.first.select(torch.tensor([0]))
            check_call(self.model, sample, "batches")
            return sample

    @cached_property
    def traced(self) -> Traced:
        """Graph of a pass of the first sample.

        Raises:
            ValueError: If the network does not take the sample.
        """
        return trace(self.model, self.example, "batches")

    @cached_property
    def pass_seconds(self) -> float:
        """Estimated seconds of a pass of all samples through the dense network, from a few samples.

        Wall-clock time for a user: other work on the machine counts, unlike in a latency.

        Raises:
            ValueError: If the network fails on the samples.
        """
        assert self.example, "a sample checked by a pass"
        some = self.first.select(torch.arange(min(TIMED, self.first.n_samples)))

        def seconds() -> float:
            started = time.perf_counter()
            call(self.model, some)
            if self.device.type != "cpu":
                torch.accelerator.synchronize(self.device)
            return time.perf_counter() - started

        with self.evaluating():
            return min(seconds() for _ in range(2)) / some.n_samples * self.samples.n_samples

    @cached_property
    def samples(self) -> CalibrationSet:
        """Samples without labels, on the device: some to fit on, some held out to judge on, and further ones."""
        with ordinary_arithmetic():
            batches = [without_labels(one, self.model) for one in self.batches]
            return replace(split_batches(batches, self.device, self.seed), further=self.further)

    @cached_property
    def output(self) -> PrunedOutput:
        """Comparison of pruned copies with the dense network on held-out samples."""
        return judge_of(self.model, self.samples)

    def further(self, samples: int) -> list[ModelInputs]:
        """Return about so many samples beyond those of `samples`, without labels, or as many as there are.

        Args:
            samples: Number of samples.
        """
        if self._further is not None and self._drawn[0] < samples:
            self._drawn = samples, self._further(samples)
        found = list[ModelInputs]()
        for batch in self._rest if self._further is None else self._drawn[1]:
            if (left := samples - sum(one.n_samples for one in found)) <= 0:
                break
            own = as_inputs(without_labels(batch, self.model)).to(self.device)
            found.append(own.select(torch.arange(min(left, own.n_samples))))
        return found

    def inputs(self, batch: Any) -> ModelInputs:
        """Return the inputs of the network for a batch, on the network's device."""
        return inputs_of(batch, self.model)

    def in_shares(self, budget: Budget) -> Budget:
        """Return a budget with shares in the place of amounts; memory and latency are as of the last service."""
        if budget.serving not in (None, self._serving):
            self._serving = budget.serving or self._serving
            self._costs.clear()
        return budget.in_shares(lambda cost: self.cost(cost).dense)

    def cost(self, name: str) -> DenseCost:
        """Return a cost of the network.

        Args:
            name: Name of the cost: "latency", measured on the first batch, or a counted cost, on the first sample.
        """
        if name not in self._costs:
            example = self.first if name == "latency" else self.example
            self._costs[name] = DenseCost(self.model, name, example, self.seed, self._serving)
        return self._costs[name]
