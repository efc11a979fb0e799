"""Validation metrics of a fit: before the first surgery, right after the last surgery, and at the end.

No sample is evaluated here; the values are from the log of the module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from prunerecover.report.data import LoggedMetric

WORD_ENDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z])(?=[A-Z](?:[a-z]{2}|[A-Z]|\d))")
SHARES = r"acc\d*|accuracy|top_?\d+|(?:mean_?|m)?iou|jaccard|f1(?:_?score)?|auc|auroc|precision|recall|dice"
NO_SHARES = r"loss(?:es)?|err|errors?|gap|diff|difference"


class LoggedPoint(NamedTuple):
    """A logged value, with the state of pruning.

    Attributes:
        epoch: Epoch of the fit.
        value: Logged value.
        surgeries: Number of surgeries of the network, in all fits; None: unknown.
        own: Number of surgeries in this fit.
        fit: Number of the fit.
    """

    epoch: int
    value: float
    surgeries: int | None = None
    own: int = 0
    fit: int = 0


def logged_metrics(
    history: Mapping[str, Sequence[LoggedPoint]], surgeries: int, dense: Mapping[str, float] | None = None
) -> dict[str, LoggedMetric]:
    """Return each metric before surgery, right after surgery, and at the end; empty without a surgery.

    Args:
        history: Points by name, in order; a metric without a point after the last surgery is left out.
        surgeries: Number of surgeries of the network.
        dense: Values of a validation before the fit, for metrics without a point before the first surgery.

    >>> history = {"val_acc": [LoggedPoint(0, 0.9, 0), LoggedPoint(1, 0.6, 1, 1), LoggedPoint(2, 0.8, 1, 1)]}
    >>> logged_metrics(history, 1)["val_acc"].after_surgery
    (1, 0.6)
    """
    found: dict[str, LoggedMetric] = {}
    for name, points in history.items() if surgeries else ():
        before = [point[:2] for point in points if point.surgeries == 0]
        pruned = [point for point in points if point.surgeries == surgeries]
        fresh = [point[:2] for point in pruned if point.own]
        if not pruned:
            continue
        known: tuple[int | None, float] | None = (None, dense[name]) if dense and name in dense else None
        found[name] = LoggedMetric(
            dense=before[-1] if before else known,
            after_surgery=fresh[0] if fresh else None,
            last=pruned[-1][:2],
            share=is_share(name, [point.value for point in points]),
        )
    return found


def is_share(name: str, values: Iterable[float]) -> bool:
    """Whether values are shares, best shown in percent, judged by name and size.

    The name needs a word for a share, as in val_acc, valAcc or top1, and no word for a loss or an error.

    >>> is_share("val_acc", [0.5, 0.9]), is_share("val_acc", [50.0]), is_share("DiceLoss", [0.5])
    (True, False, False)
    """
    words = WORD_ENDS.sub("_", name).lower()
    has_share, has_other = (re.search(rf"(?:^|_)(?:{kind})(?:_|$)", words) for kind in (SHARES, NO_SHARES))
    return has_share is not None and has_other is None and all(0 <= value <= 1 for value in values)
