"""Latency budgets: a clock says how much goes, and widths are rounded where processors compute in blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_llama
from cases.width.plan_width import IMAGE, Batches, labelled_batches, removed_share, vit
from torch import nn

from prunerecover import Budget, Plan, apply_plan, plan_width
from prunerecover.cost.macs import count_macs
from prunerecover.model.copies import share_copy
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.saved_cost import TIMED, DenseCost
from prunerecover.width.allocation.by_importance import uniform
from prunerecover.width.allocation.latency_budget import STEPS, cheapest
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.groups.rounding import BLOCK


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 32, 1), nn.ReLU(), nn.Conv2d(32, 64, 1), nn.ReLU(), nn.Conv2d(64, 48, 1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 4)).eval()


def products(model: nn.Module, block: int) -> int:
    """Return the multiplications of a processor that works on blocks of channels, including partly filled ones."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    return sum(math.prod(math.ceil(n / block) * block for n in (m.in_channels, m.out_channels)) for m in convolutions)


Processor = Callable[[int], None]


def timed_by(monkeypatch: pytest.MonkeyPatch, clock: Callable[[DenseCost, nn.Module], float]) -> None:
    """Measure saved shares by a function of the whole and of the pruned model."""

    def removed_share(whole: DenseCost, edits: Any, wanted: float | None = None) -> float:
        assert whole.cost == "latency"
        copied = share_copy(whole.model)
        apply_edits(copied, edits)
        return clock(whole, copied)

    monkeypatch.setattr(DenseCost, "removed_share", removed_share)


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Processor:
    """Time models by such a processor."""

    def of(block: int) -> None:
        timed_by(monkeypatch, lambda whole, pruned: 1 - products(pruned, block) / products(whole.model, block))

    return of


def large_batches() -> Batches:
    """One, of which few samples are timed where several plans are compared."""
    images, labels = (torch.cat(parts) for parts in zip(*labelled_batches(), strict=True))
    return [(images.repeat(2 * TIMED // len(images), 1, 1, 1), labels.repeat(2 * TIMED // len(labels)))]


def planned(**how: Any) -> Plan:
    how = {"batches": labelled_batches(), "importance": "magnitude", "replace": "zero", **how}
    return plan_width(network(), Budget(latency=0.4), **how)


@pytest.mark.parametrize("allocation", ["per_cost", "uniform", "global"])
def test_multiples_are_taken_where_they_are_faster(allocation: str, processor: Processor) -> None:
    processor(8)
    plan = planned(allocation=allocation)
    assert plan.made_by.arguments["round_to"] == BLOCK
    assert all(group.kept % 8 == 0 for group in plan.kept_groups)


def test_single_units_go_where_they_are_as_fast(processor: Processor) -> None:
    processor(1)
    plan = planned()
    assert "round_to" not in plan.made_by.arguments
    assert any(group.kept % 8 for group in plan.kept_groups)


def test_what_would_lose_more_is_not_measured(processor: Processor, monkeypatch: pytest.MonkeyPatch) -> None:
    """To try multiples, too, takes less than twice as long."""
    processor(8)
    clock, timed = DenseCost.removed_share, []

    def counted(whole: DenseCost, edits: Any, wanted: float | None = None) -> float:
        timed.append(edits)
        return clock(whole, edits, wanted=wanted)

    monkeypatch.setattr(DenseCost, "removed_share", counted)
    planned(round_to=1)
    alone = len(timed)
    planned()
    assert alone == STEPS + 1, "what goes in the end is measured for the evidence"
    assert alone < len(timed) - alone < 2 * alone


def test_budgets_are_compared_on_few_samples(processor: Processor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates save the same on the whole batch, or the search continues."""
    processor(1)
    clock, timed = DenseCost.removed_share, []

    def less_on_all(whole: DenseCost, edits: Any, wanted: float | None = None) -> float:
        timed.append(whole.example.n_samples)
        saved = clock(whole, edits, wanted=wanted)
        return saved if timed[-1] == TIMED else 0.8 * saved

    monkeypatch.setattr(DenseCost, "removed_share", less_on_all)
    batches = large_batches()
    plan = planned(batches=batches, round_to=1)
    ((images, _),) = batches
    assert set(timed) == {TIMED, len(images)}
    assert timed.count(len(images)) == 3, "twice for the budget, once for the evidence"
    pruned = network()
    apply_plan(pruned, plan)
    assert 0.39 <= 0.8 * (1 - products(pruned, 1) / products(network(), 1)) < 0.43


def test_few_samples_that_say_too_little_decide_nothing(processor: Processor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The few samples show hardly any savings, as on a GPU with idle cores."""
    processor(1)
    clock = DenseCost.removed_share

    def less_on_few(whole: DenseCost, edits: Any, wanted: float | None = None) -> float:
        saved = clock(whole, edits, wanted=wanted)
        return 0.3 * saved if whole.example.n_samples == TIMED else saved

    monkeypatch.setattr(DenseCost, "removed_share", less_on_few)
    pruned = network()
    apply_plan(pruned, planned(batches=large_batches(), round_to=1))
    assert 0.4 <= 1 - products(pruned, 1) / products(network(), 1) < 0.43


@pytest.mark.parametrize("round_to", [1, 2])
def test_a_number_that_is_given_stays(round_to: int, processor: Processor) -> None:
    processor(8)
    plan = planned(round_to=round_to)
    assert plan.made_by.arguments["round_to"] == round_to
    assert any(group.kept % 8 for group in plan.kept_groups)


def test_multiples_meet_budgets_that_single_units_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor that is slow at every odd width."""

    def clock(whole: DenseCost, pruned: nn.Module) -> float:
        widths = [module.out_channels for module in pruned.modules() if isinstance(module, nn.Conv2d)]
        return 0.0 if any(width % 8 for width in widths) else 0.5

    timed_by(monkeypatch, clock)
    assert planned().made_by.arguments["round_to"] == 8
    with pytest.raises(ValueError, match=r"can meet, 40.0% of the latency, but the most that was saved is 0.0%"):
        planned(round_to=1)


def test_allocations_of_ones_own_are_not_asked_for_multiples(processor: Processor) -> None:
    processor(8)
    asked = []

    def own(groups: Any, *others: Any) -> Any:
        asked.extend(group.multiple for group in groups)
        return uniform(groups, *others)

    planned(allocation=own)
    assert set(asked) == {1}


def test_the_first_refusal_is_told_if_nothing_can_be_met() -> None:
    def refuse(way: int, most: float) -> Any:
        raise ValueError(f"way {way}")

    with pytest.raises(ValueError, match="way 1"):
        cheapest([1, 2], refuse)


def test_latency_is_measured_without_the_loss() -> None:
    ids = torch.randint(10, (2, 6))
    planner = WidthAllocator(Session(tiny_llama(), [{"input_ids": ids, "labels": ids}]))
    assert planner.session.first.kwargs.keys() == {"input_ids"}


@pytest.mark.slow
def test_latency_budgets_of_several_kinds_are_met_by_a_clock_of_macs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = vit()
    dense = count_macs(model, IMAGE)
    timed_by(monkeypatch, lambda _, pruned: 1 - count_macs(pruned, IMAGE) / dense)
    plan = plan_width(model, Budget(latency=0.3), batches=labelled_batches(), allocation="per_cost")
    assert "rates" in plan.evidence
    assert 0.3 <= removed_share(model, plan, "macs") < 0.35
