"""Cost saved by edits: the share of a model's MACs, parameters or latency, measured on merged copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from prunerecover.cost.counted import COUNTED
from prunerecover.cost.latency import LatencyRatio, Timed, latency_ratio, median_latency
from prunerecover.cost.units.clock_names import TORCH
from prunerecover.cost.units.serving import Serving
from prunerecover.model.batches import ModelInputs
from prunerecover.model.copies import meta_copy, share_copy
from prunerecover.model.evaluation import device_of
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Edit
from prunerecover.plan.plan import Plan
from prunerecover.surgery.apply_edits import apply_edits, edited
from prunerecover.surgery.merging import merge_edits

PAIRS = 30
FEW = 6  # pairs, enough where they agree, or where a share is far from the wanted share
CLOCKS = 0.01  # usual difference of two latency measurements of the same model
TIMED = 32  # samples, enough to compare the latency of several plans: with fewer, more stays in caches


@dataclass(frozen=True, eq=False)
class DenseCost:
    """Cost of a merged model, measured once, and the share of it that edits remove.

    Attributes:
        model: Network without wrappers; not changed.
        cost: Name of a cost in `cost.counted`, or "latency", measured on the model's device, as the median of
            interleaved pairs.
        example: Batch.
        seed: Seed of the latency's bootstrap.
        serving: Load at which memory is counted, and the clock of latencies.
    """

    model: nn.Module
    cost: str
    example: ModelInputs
    seed: int = 0
    serving: Serving = Serving()

    @cached_property
    def on_few(self) -> DenseCost:
        """Cost of the same model on few of the samples, or the object itself if there are hardly more.

        Devices other than CPUs compute few samples as fast as many: few samples tell nothing.
        """
        if self.example.n_samples < 2 * TIMED or device_of(self.model).type != "cpu":
            return self
        return replace(self, example=self.example.select(torch.arange(TIMED)))

    @cached_property
    def dense(self) -> float:
        """Cost of the merged model: MACs a sample, seconds for the example, or what else is counted."""
        if self.cost == "latency":
            return median_latency(self._timed, self.example) / 1e3
        return self._total / (self.example.n_samples if self.cost == "macs" else 1)

    def live_share(self, edits: Sequence[Edit]) -> float:
        """Return the removed share of the MACs or parameters while the pruned model is not merged.

        Args:
            edits: Edits in order, without fitted tensors.
        """
        with edited(self._twin, edits):
            return 1 - self._counted(self._twin) / self._total

    def removed_share(self, edits: Sequence[Edit], *, wanted: float | None = None) -> float:
        """Return the removed share of the cost once the pruned model is merged, as in the saved model.

        Args:
            edits: Edits in order, without fitted tensors: values do not change the cost.
            wanted: Share to reach, where only reaching counts: few pairs are enough for a latency far from the share.
                None: the share itself counts, and few pairs are enough where the pairs agree.
        """
        with self._pruned(edits):
            if self.cost == "latency":
                return self._faster(wanted)
            return 1 - self._counted(self._twin) / self._total

    def rough_share(self, edits: Sequence[Edit]) -> float:
        """Return the share of the latency saved by edits, by few pairs, to within about a percent.

        Args:
            edits: Edits in order, without fitted tensors.
        """
        with self._pruned(edits):
            return 1 - self._ratio(FEW, warmup=1, enough=2 * CLOCKS).ratio.value

    @contextmanager
    def _pruned(self, edits: Sequence[Edit]) -> Iterator[None]:
        """Prune and merge the twin inside a `with` block."""
        with edited(self._twin, edits), edited(self._twin, merge_edits(self._twin)):
            yield

    def _faster(self, wanted: float | None) -> float:
        """Return the share of the latency saved by the pruned twin, by few pairs where enough."""
        few = None if wanted is None else self._ratio(FEW, warmup=1).ratio
        if few is not None and (few.high - few.low <= CLOCKS or 1 - wanted not in few):  # type: ignore[operator]
            return 1 - few.value
        return 1 - self._ratio(PAIRS, warmup=1, enough=CLOCKS).ratio.value

    def _ratio(self, pairs: int, **how: Any) -> LatencyRatio:
        """Return the latency of the pruned twin over that of the dense network."""
        clock = self.serving.clock
        return latency_ratio(self._timed, self._twin, self.example, pairs=pairs, seed=self.seed, clock=clock, **how)

    @cached_property
    def _timed(self) -> nn.Module | Timed:
        """The dense network, made ready to be timed where its runtime is not PyTorch."""
        clock = self.serving.clock
        return self._merged if clock == TORCH else Timed(self._merged, self.example, clock)

    @cached_property
    def _twin(self) -> nn.Module:
        """Copy for edits, restored after each measurement."""
        # GPT-2's forward pass reads the input's values, unlike on meta.
        return self._copied()

    @cached_property
    def _merged(self) -> nn.Module:
        copied = self._copied()
        apply_edits(copied, merge_edits(copied))
        return copied

    def _copied(self) -> nn.Module:
        """Return a copy to edit; without values where nothing runs it."""
        return share_copy(self.model) if self.cost == "latency" or COUNTED[self.cost].runs else meta_copy(self.model)

    @cached_property
    def _total(self) -> float:
        return self._counted(self._merged)

    def _counted(self, model: nn.Module) -> float:
        return COUNTED[self.cost].count(model, self.example, self.serving)


def budget_used(
    plan: Plan, budget: Budget, model: nn.Module, example: Callable[[], ModelInputs], seed: int = 0
) -> dict[str, float]:
    """Return the use of a budget by a plan: units by kind, or the removed share of each cost by name.

    Args:
        plan: Plan to apply.
        budget: Budget with the units or costs to count.
        model: Network without wrappers, before the plan.
        example: Function that returns a batch, for the measurement of shares.
        seed: Seed of the latency's bootstrap.
    """
    if budget.in_units:
        return {kind: len(names) for kind, names in plan.removed.items()}
    if not plan.edits:
        return {}
    batch = example()
    serving = budget.serving or Serving()
    costs = {cost: DenseCost(model, cost, batch, seed, serving) for cost in budget.shares}
    return {cost: dense.removed_share(plan.edits) for cost, dense in costs.items()}
