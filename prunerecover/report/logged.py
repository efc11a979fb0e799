"""What a fit logged in validation: before its first surgery, right after its last one, and at its end.

No sample is evaluated here; the values are those that the module logged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from prunerecover.report.data import LoggedMetric

Points = Sequence[tuple[int, float]]  # epoch and value, in order

SHARES = re.compile(r"acc|top_?\d|iou|f1|auc|auroc|precision|recall|dice", re.IGNORECASE)


def logged_metrics(
    history: Mapping[str, Points], surgeries: Iterable[int], dense: Mapping[str, float] | None = None
) -> dict[str, LoggedMetric]:
    """Return what each metric was before, right after, and at the end; empty if there was no surgery.

    Args:
        history: Points (epoch, value) by name; a metric without one after the last surgery is left out.
        surgeries: Epochs at whose start units were removed.
        dense: Values of a validation before the fit, for metrics without a point before the first surgery.

    >>> history = {"val_acc": [(0, 0.9), (1, 0.6), (2, 0.8)]}
    >>> logged_metrics(history, [1])["val_acc"].after_surgery
    (1, 0.6)
    """
    epochs = sorted(surgeries)
    found: dict[str, LoggedMetric] = {}
    for name, points in history.items() if epochs else ():
        before = [(epoch, value) for epoch, value in points if epoch < epochs[0]]
        after = [(epoch, value) for epoch, value in points if epoch >= epochs[-1]]
        if not after:
            continue
        known: tuple[int | None, float] | None = (None, dense[name]) if dense and name in dense else None
        found[name] = LoggedMetric(
            dense=before[-1] if before else known,
            after_surgery=after[0],
            last=after[-1],
            share=is_share(name, [value for _, value in points]),
        )
    return found


def is_share(name: str, values: Iterable[float]) -> bool:
    """Whether values are shares that read best in percent, going by their name and size.

    >>> is_share("val_acc", [0.5, 0.9]), is_share("val_acc", [50.0]), is_share("val_loss", [0.5])
    (True, False, False)
    """
    return SHARES.search(name) is not None and "loss" not in name and all(0 <= value <= 1 for value in values)
