"""What a fit logged in validation is shown at three moments: dense, right after surgery, recovered."""

from __future__ import annotations

import pytest
from torch import nn, zeros

from prunerecover.report.compare import compare
from prunerecover.report.logged import logged_metrics
from prunerecover.report.render import rows

POINTS = {"val_acc": [(0, 0.5), (1, 0.9), (2, 0.6), (3, 0.7), (4, 0.85)]}


def shown(logged):
    layer = nn.Linear(2, 2)
    report = compare(layer, layer, zeros(1, 2), pairs=0).model_copy(update={"logged": logged})
    return rows(report)[-1], report.to_markdown()


def test_moments_lie_around_the_surgeries():
    found = logged_metrics(POINTS, [3, 2])["val_acc"]
    assert (found.dense, found.after_surgery, found.last) == ((1, 0.9), (3, 0.7), (4, 0.85))


def test_the_row_has_all_three():
    row, text = shown(logged_metrics(POINTS, [2]))
    assert row == ("val_acc, % (logged)", "90.00", "60.00 after surgery, 85.00 recovered", "-5.00")
    assert "of epoch 1, the last before the first surgery; after surgery in the first one after" in text
    assert "at the end of epoch 2; recovered in that of epoch 4." in text


def test_a_validation_before_the_fit_is_the_dense_one():
    row, text = shown(logged_metrics(POINTS, [0], {"val_acc": 0.95}))
    assert row[1:] == ("95.00", "50.00 after surgery, 85.00 recovered", "-10.00")
    assert "dense in the validation before the fit" in text


def test_without_a_dense_value_the_row_says_so():
    row, text = shown(logged_metrics(POINTS, [0]))
    assert row[1:] == ("not validated", "50.00 after surgery, 85.00 recovered", "")
    assert "trainer.validate before fit, without pruning, tells what the dense model scores" in text


def test_no_surgery_and_nothing_logged_make_no_row():
    assert logged_metrics(POINTS, []) == {}
    assert logged_metrics({}, [1]) == {}
    assert logged_metrics({"val_acc": [(0, 0.5)]}, [3]) == {}


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("val_loss", (2.5, 2.0), ("val_loss (logged)", "2.5", "2", "-0.5")),
        ("val_acc", (93.5, 91.0), ("val_acc (logged)", "93.5", "91", "-2.5")),
        ("val_miou", (0.5, 0.625), ("val_miou, % (logged)", "50.00", "62.50", "+12.50")),
    ],
)
def test_shares_are_in_percent_and_nothing_else(name, values, expected):
    row, _ = shown(logged_metrics({name: list(enumerate(values))}, [1]))
    assert row == expected
