"""Units counted by an operation stay, with the reason; explicit norms are over the remaining units."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from cases.models.width import images, stirred
from cases.width.groups import assert_equal, outputs
from cases.width.oracle import masked, narrowed, thirty_percent
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import Budget, plan_width
from prunerecover.width.groups.discovery import find_groups
from prunerecover.width.groups.found import FoundGroups

How = Callable[["Hidden", Tensor], Tensor]
DATA = [(images(4).float(), torch.arange(2))]


class Hidden(nn.Module):
    """Two layers of channels and two of neurons; `how` computes a function of the first, `(N, 8, H, W)`."""

    def __init__(self, how: How) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 6, 1)
        self.third, self.last, self.how = nn.Linear(6, 10), nn.Linear(10, 2), how

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.how(self, self.first(x)).relu()).mean((2, 3))
        return self.last(self.third(y).relu())


COUNTED: dict[str, tuple[How, str]] = {  # with the operation that is named
    "size": (lambda net, y: y / y.shape[1] ** 0.5, "div"),
    "size()": (lambda net, y: y * y.size(1), "mul"),
    "attribute": (lambda net, y: y / net.first.out_channels, "div"),
    "weight": (lambda net, y: y ** net.first.weight.shape[0], "pow"),
    "tensor": (lambda net, y: y / torch.sqrt(torch.tensor(y.shape[1])), "lift_fresh"),
    "logsumexp": (lambda net, y: y - y.logsumexp(1, keepdim=True), "logsumexp"),
    "prod": (lambda net, y: y + (y + 1).prod(1, keepdim=True), "prod"),
    "full": (lambda net, y: y / torch.full((), float(y.shape[1])), "full"),
    "sum over size": (lambda net, y: y - F.relu(y.sum(1, keepdim=True) / y.shape[1]), "div"),
    "mean gates": (lambda net, y: y * F.conv2d(y.mean(1, keepdim=True), torch.ones(1, 1, 3, 3), padding=1), "mean"),
    "var": (lambda net, y: y * F.max_pool2d(y.var(1, keepdim=True), 1), "var"),
    "mean of squares": (lambda net, y: y + F.avg_pool2d((y * y).mean(1, keepdim=True), 1), "mean"),
}


def names(found: FoundGroups) -> set[str]:
    return {group.name for group in found.groups}


@pytest.mark.parametrize("name", COUNTED)
def test_units_that_an_operation_counts_stay_and_it_is_named(name: str) -> None:
    how, operation = COUNTED[name]
    found = find_groups(Hidden(how), images(2).float())
    assert [(one.group.name, one.operation) for one in found.counted] == [("first", f"{operation} in the model itself")]
    assert names(found) == {"second", "third"}


def test_plan_warns_of_what_is_counted_unless_it_is_ignored_and_narrows_the_rest() -> None:
    torch.manual_seed(0)
    model, budget = Hidden(COUNTED["size"][0]), Budget(params=0.1)
    message = r"^first: not narrowed, because an operation \(div in the model itself\) counts the units"
    with pytest.warns(UserWarning, match=message):
        plan = plan_width(model, budget, batches=DATA)
    assert {edit.unit for edit in plan.edits} <= {"second", "third"}
    with warnings.catch_warnings(action="error"):
        plan_width(model, budget, batches=DATA, ignore=["first"])


def test_network_of_counted_units_alone_is_refused_with_the_operation() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x / x.shape[-1])

    net = nn.Sequential(nn.Linear(4, 8), Scaled(8, 2))
    with pytest.raises(ValueError, match=r"has none: .* Operations that count units: div in '1'\."):
        find_groups(net, torch.zeros(1, 4))


def test_groups_that_are_all_ignored_are_told_with_those_that_are_counted() -> None:
    net, x = Hidden(COUNTED["size"][0]), images(2).float()
    with pytest.raises(ValueError, match=r"but all 3 are ignored\.$"):
        find_groups(net, x, ignore=["first", "second", "third"])
    with pytest.raises(ValueError, match=r"but all 2 are ignored\. Operations that count units: div in the model"):
        find_groups(net, x, ignore=["second", "third"])


UNCOUNTED: dict[str, How] = {
    "a number of its own": lambda net, y: y / 8**0.5,
    "sum": lambda net, y: y * y.sum(1, keepdim=True) / 8,
    "unit length": lambda net, y: F.normalize(y, dim=1),
    "mean over positions": lambda net, y: y * y.mean((2, 3), keepdim=True) / y.shape[2],
    "largest after a ReLU": lambda net, y: y.relu() * y.relu().amax(1, keepdim=True),
    "logsumexp over positions": lambda net, y: y * y.logsumexp((2, 3), keepdim=True),
    "position in the middle": lambda net, y: y * y[:, :, y.shape[2] // 2, None],
}


@pytest.mark.parametrize("name", UNCOUNTED)
def test_what_does_not_count_units_narrows_to_what_masking_gives(name: str) -> None:
    net, x = stirred(Hidden(UNCOUNTED[name])), images(4)
    found = find_groups(net, x)
    assert names(found) == {"first", "second", "third"}
    assert not found.counted
    keep = thirty_percent(found)
    with torch.no_grad():
        assert_equal(outputs(narrowed(net, found, keep), x), outputs(masked(net, found, keep), x))


def response(y: Tensor) -> Tensor:
    return y.norm(dim=(2, 3), keepdim=True)


NORMS: dict[str, How] = {
    "layer norm": lambda net, y: F.layer_norm(y.movedim(1, -1), (y.shape[1],)).movedim(-1, 1),
    "rms": lambda net, y: y * torch.rsqrt(y.pow(2).mean(1, keepdim=True) + 1e-6),
    "mean and var": lambda net, y: (y - y.mean(1, keepdim=True)) / (y.var(1, keepdim=True) + 1e-6).sqrt(),
    "std_mean": lambda net, y: (y - torch.std_mean(y, 1, keepdim=True)[1]) / torch.std_mean(y, 1, keepdim=True)[0],
    "in place": lambda net, y: y.clone().sub_(y.mean(1, keepdim=True)),
    "global response": lambda net, y: y * response(y) / response(y).mean(1, keepdim=True),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_over_units_are_over_those_that_stay(name: str) -> None:
    found = find_groups(Hidden(NORMS[name]), images(2).float())
    assert names(found) == {"first", "second", "third"}
    assert not found.counted


class Detector(nn.Module):
    """The number of rows depends on the values; a norm takes its statistics over the units."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(1, 16), nn.Conv2d(16, 24, 1)
        self.score, self.third, self.last = nn.Conv2d(24, 1, 1), nn.Linear(24, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.second(self.norm(self.first(x)).relu()).relu()
        scores = self.score(seen).flatten(1)
        rows = seen.flatten(2).transpose(1, 2)[scores > scores.mean()]
        return self.last(self.third(rows).relu()).sum(0) / max(len(rows), 1)


def test_numbers_that_data_decide_behind_a_norm_count_nothing() -> None:
    torch.manual_seed(0)
    found = find_groups(Detector(), torch.randn(2, 3, 12, 12))
    assert names(found) == {"first", "second", "third"}
    assert not found.counted


def test_units_are_counted_though_the_data_decide_which_operations_are_run() -> None:
    torch.manual_seed(0)
    net, x = nn.Conv2d(3, 8, 1), images(2).float()
    total = float(net(x).detach().abs().sum())

    def how(hidden: Hidden, y: Tensor) -> Tensor:
        y = y * 2.0 if y.abs().sum() > 0.95 * total else y
        return y / y.shape[1] ** 0.5

    whole = Hidden(how)
    whole.first = net
    assert [one.operation for one in find_groups(whole, x).counted] == ["div in the model itself"]


def test_units_are_counted_by_code_that_fails_where_all_are_zero() -> None:
    def how(net: Hidden, y: Tensor) -> Tensor:
        if not y.any():
            raise ValueError("nothing is seen")
        return y / y.shape[1]

    assert [one.group.name for one in find_groups(Hidden(how), images(2).float()).counted] == ["first"]
