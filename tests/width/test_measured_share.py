"""Budgets are met on the really narrowed model, or the plan states the real share."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import Budget, Plan, apply_plan, plan_width
from prunerecover.cost.macs import count_macs
from prunerecover.width.allocation.measured_share import Shares, meet_measured

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randn(8, 3, 32, 32, generator=GENERATOR)
LABELS = torch.randint(0, 5, (8,), generator=GENERATOR)
IDS = torch.randint(1, 60, (8, 9), generator=GENERATOR)
QUICK: dict[str, Any] = {"importance": "l2_norm", "replace": "zero"}


class Often(nn.Module):
    """Head that runs more often the narrower its input is, as on the detections of another network."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 40), nn.Linear(40, 4)
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(F.relu(self.first(x)))
        times = 1 if self.first.out_features == 40 else 40
        return self.head(y[:, None].expand(-1, times, -1)).mean(1)


class TwoStages(nn.Module):
    """Small two-stage detector: positions with a high score in the first stage go through the second."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 12, 3, padding=1))
        self.score = nn.Conv2d(12, 1, 1)
        self.second = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 4))

    def rows(self, x: Tensor) -> Tensor:
        y = self.features(x).relu()
        return y.movedim(1, -1)[self.score(y)[:, 0] > 0]

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.rows(x))


def saved(model: nn.Module, plan: Plan, example: Any) -> float:
    dense = count_macs(model, example)
    apply_plan(model, plan)
    return 1 - count_macs(model, example) / dense


@pytest.mark.parametrize(("seed", "replace"), [(0, "zero"), (7, "calibrated")])
def test_share_of_two_stages_is_met_or_told_however_many_rows_are_left(seed: int, replace: Any) -> None:
    torch.manual_seed(seed)
    model, example = TwoStages().eval(), IMAGES[:1]
    rows = len(model.rows(example))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = [(image[None],) for image in IMAGES]
        plan = plan_width(model, Budget(macs=0.3), batches=batches, importance="l2_norm", replace=replace)
    share = saved(model, plan, example)
    assert len(model.rows(example)) != rows
    told = [str(warning.message) for warning in caught if "The plan removes" in str(warning.message)]
    if abs(share - 0.3) > 0.02:
        assert f"removes {share:.1%} of the macs on the first calibration sample, not the requested 30.0%" in told[0]


def test_share_that_is_another_on_another_sample_is_told_with_both() -> None:
    torch.manual_seed(4)
    model, other = TwoStages().eval(), IMAGES[:1] + 3
    message = r"removes (\S+)% of the macs on the first calibration sample, but (\S+)% on the last one: how often"
    with pytest.warns(UserWarning, match=message) as caught:
        plan = plan_width(model, Budget(macs=0.3), batches=[(IMAGES[:1],), (other,)], **QUICK)
    narrowed = copy.deepcopy(model)
    apply_plan(narrowed, plan)
    last = 1 - count_macs(narrowed, other) / count_macs(model, other)
    assert f"but {last:.1%} on the last one" in str(caught[-1].message)


class Positions(nn.Module):
    """Projects a table of positions once per call, however many samples there are."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(16, 16))
        self.project, self.enter, self.leave = nn.Linear(16, 16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.enter(x).relu()) + self.project(self.table).mean(0)


def test_share_of_a_batch_that_is_another_than_of_a_sample_is_told_with_both() -> None:
    model, batch = Positions(), torch.randn(8, 16)
    with pytest.warns(UserWarning, match=r"of the macs of one sample, but (\S+)% of those of a batch of 8") as told:
        plan = plan_width(model, Budget(macs=0.2), batches=[batch, batch], importance="l2_norm")
    assert f"but {saved(model, plan, batch):.1%} of those" in str(told[0].message)


def test_sequences_of_other_lengths_save_about_the_same() -> None:
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(vocab_size=64, dim=32, n_layers=2, hidden_dim=64, n_heads=4, num_labels=3)
    model = transformers.DistilBertForSequenceClassification(config).eval()
    batches = [{"input_ids": ids, "labels": LABELS % 3} for ids in (IDS, IDS.repeat(1, 2))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plan_width(model, Budget(macs=0.3), batches=batches, kinds=("neuron",), **QUICK).removed


def test_of_units_that_take_too_much_the_smallest_goes() -> None:
    """A unit of the grouped convolution is a quarter of it; a unit of the first takes 2.2% of the MACs."""
    torch.manual_seed(0)
    body = (nn.Conv2d(24, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3, groups=4), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5))
    model = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), *body, *head)
    plan = plan_width(model, Budget(macs=0.5), batches=[(IMAGES, LABELS)], **QUICK)
    assert 0.5 <= saved(model, plan, IMAGES[:1]) < 0.52


def test_plan_says_what_it_removes_where_it_is_not_what_was_asked_for() -> None:
    torch.manual_seed(0)
    message = r"The plan removes -\d+\.\d% of the macs on the first calibration sample, not the requested 30.0%"
    with pytest.warns(UserWarning, match=message):
        plan_width(Often(), Budget(macs=0.3), batches=[torch.randn(8, 4)], ignore="second", **QUICK)


@pytest.mark.parametrize("wrong", [0.8, 1.5])
def test_budget_is_corrected_until_the_measured_share_is_met(wrong: float) -> None:
    found, saved = meet_measured("macs", 0.3, lambda share: share, lambda share: Shares(share, wrong * share, 0.001))
    assert saved == wrong * found
    assert abs(saved - 0.3) <= 0.01


def test_a_coarse_unit_too_much_is_a_warning_from_two_points_on() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert meet_measured("macs", 0.3, lambda share: share, lambda _: Shares(0.315, 0.315, 0.06)) == (0.3, 0.315)
    with pytest.warns(UserWarning, match=r"removes 35.0% of the macs .* not the requested 30.0%.* is left saves 6.0%"):
        meet_measured("macs", 0.3, lambda share: share, lambda _: Shares(0.35, 0.35, 0.06))


def test_allocation_without_an_answer_is_no_error_once_there_was_one() -> None:
    def allocate(share: float) -> float:
        if share > 0.3:
            raise ValueError("no more can go")
        return share

    with pytest.warns(UserWarning, match="removes 20.0% of the params .* not the requested 30.0%"):
        found, _ = meet_measured("params", 0.3, allocate, lambda share: Shares(share, share - 0.1, 0.001))
    assert found == 0.3
