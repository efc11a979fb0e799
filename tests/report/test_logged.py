"""What a fit logged in validation is shown at three moments: dense, right after surgery, recovered."""

from __future__ import annotations

import pytest
from torch import nn, zeros

from prunerecover.report.compare import compare
from prunerecover.report.data import LoggedMetric
from prunerecover.report.logged import LoggedPoint, is_share, logged_metrics
from prunerecover.report.render import rows


def points(values, *surgeries):
    """One point per epoch of one fit, with surgeries at the start of epochs."""
    done = [sum(at <= epoch for at in surgeries) for epoch in range(len(values))]
    return [LoggedPoint(epoch, value, done[epoch], done[epoch], 1) for epoch, value in enumerate(values)]


VALUES = (0.5, 0.9, 0.6, 0.7, 0.85)


def shown(logged):
    layer = nn.Linear(2, 2)
    report = compare(layer, layer, zeros(1, 2), pairs=0).model_copy(update={"logged": logged})
    return rows(report)[-1], report.to_markdown()


def test_moments_lie_around_the_surgeries():
    found = logged_metrics({"val_acc": points(VALUES, 2, 3)}, 2)["val_acc"]
    assert (found.dense, found.after_surgery, found.last) == ((1, 0.9), (3, 0.7), (4, 0.85))


def test_the_row_has_all_three():
    row, text = shown(logged_metrics({"val_acc": points(VALUES, 2)}, 1))
    assert row == ("val_acc, % (logged)", "90.00", "60.00 after surgery, 85.00 recovered", "-5.00")
    assert (
        "Logged metrics are the module's own: dense is from the last validation before the first surgery, in epoch 1; "
        "after surgery is from the first validation after the last surgery, in epoch 2; recovered is from the last "
        "validation, in epoch 4."
    ) in text


def test_a_validation_before_the_fit_is_the_dense_one():
    row, text = shown(logged_metrics({"val_acc": points(VALUES, 0)}, 1, {"val_acc": 0.95}))
    assert row[1:] == ("95.00", "50.00 after surgery, 85.00 recovered", "-10.00")
    assert "dense is from the validation before the fit;" in text


def test_without_a_dense_value_the_row_says_so():
    row, text = shown(logged_metrics({"val_acc": points(VALUES, 0)}, 1))
    assert row[1:] == ("not validated", "50.00 after surgery, 85.00 recovered", "")
    assert "dense is not known, for it was logged in no validation that the report saw before" in text
    assert "a Trainer that has the fit's PruneReport and no callback that prunes" in text


def test_moments_that_differ_are_said_of_their_metrics():
    rare = [point for point in points(VALUES, 1) if point.epoch > 1]
    _, text = shown(logged_metrics({"val_map": rare, "val_acc": points(VALUES, 1)}, 1))
    assert "before the first surgery (val_map), dense is from the last validation" in text
    assert "in epoch 2 (val_map), after surgery is from" in text
    assert "no callback that prunes" not in text


def test_a_surgery_in_a_fit_before_leaves_no_moment_but_the_last():
    row, text = shown({"val_acc": LoggedMetric(dense=None, after_surgery=None, last=(2, 0.5), share=True)})
    assert row[1:] == ("not validated", "50.00", "")
    assert "right after surgery is not known, for the network was pruned before this fit;" in text


def test_no_surgery_and_nothing_logged_make_no_row():
    assert logged_metrics({"val_acc": points(VALUES)}, 0) == {}
    assert logged_metrics({}, 1) == {}
    assert logged_metrics({"val_acc": points(VALUES[:1])}, 1) == {}


SHARES = (
    "val_acc valAcc Accuracy BinaryAccuracy acc1 acc@5 top1 val_top_5 mIoU MeanIoU val_miou F1 F1Score BinaryAUROC dice"
)
OTHERS = "DiceLoss val_accumulated val_err_acc_gap LOSS top1_error acc_Loss stop_2 accelerate val_f10 preciseness"


@pytest.mark.parametrize("name", [*SHARES.split(), "val_acc/dataloader_idx_0"])
def test_words_tell_shares(name):
    assert is_share(name, [0.3])


@pytest.mark.parametrize("name", OTHERS.split())
def test_parts_of_words_tell_nothing_and_losses_are_no_shares(name):
    assert not is_share(name, [0.3])


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("val_loss", (2.5, 2.0), ("val_loss (logged)", "2.5", "2", "-0.5")),
        ("val_acc", (93.5, 91.0), ("val_acc (logged)", "93.5", "91", "-2.5")),
        ("val_miou", (0.5, 0.625), ("val_miou, % (logged)", "50.00", "62.50", "+12.50")),
    ],
)
def test_shares_are_in_percent_and_nothing_else(name, values, expected):
    row, _ = shown(logged_metrics({name: points(values, 1)}, 1))
    assert row == expected
