"""One network of the zoo pruned in width: planned with default arguments for 30% of the MACs.

What happens is told as an outcome: "ok" only if the share that is really gone is the one asked for, or a warning names
both.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.zoo.networks.network import Network
from benchmarks.zoo.networks.suites import networks_of
from benchmarks.zoo.trial import SEED, Ended, Row, applied, batches, dense, trained_and_saved
from prunerecover import Budget, Plan, plan_width
from prunerecover.cost.macs import count_macs
from prunerecover.model.batches import without_labels
from prunerecover.refusal import Refusal

ASKED, MISS = 0.3, 0.02
NOTHING = "to have groups of kind"  # of the error that says that there is nothing to prune


def pruned(suite: str, name: str, folder: Path) -> Row:
    """Plan, apply, train and save a network; leave its outputs beside it, and return what its row says of that."""
    network = networks_of(suite)[name]
    model, given = dense(network, SEED), batches(network)
    example = without_labels(given[0])
    before = count_macs(model, example)
    row: Row = {}
    try:
        with _timed(row):
            plan, told = _planned(model, given, network)
        applied(model, plan)
        removed = 1 - count_macs(model, example) / before
        trained_and_saved(model, plan, given, network, folder)
    except Ended as end:
        return {**row, **end.row}
    return {**row, **judged(removed, told), "removed": removed}


def judged(removed: float, told: Sequence[str]) -> Row:
    """Return how a share of the MACs that is really gone ends, given the warnings of planning.

    >>> judged(0.31, [])
    {'outcome': 'ok'}
    >>> judged(0.35, [])["reason"]
    '35.0% of the MACs are gone instead of 30%, and no warning says so'
    >>> judged(0.35, ["Asked for 30% of the MACs, 35.0% go."])["outcome"]
    'ok'
    """
    if abs(removed - ASKED) <= MISS:
        return {"outcome": "ok"}
    named = next((text for text in told if _names(text, ASKED) and _names(text, removed)), None)
    if named is not None:
        return {"outcome": "ok", "warned": named}
    reason = f"{removed:.1%} of the MACs are gone instead of {ASKED:.0%}, and no warning says so"
    return {"outcome": "failed", "reason": reason}


def _names(text: str, share: float) -> bool:
    return any(abs(float(number) / 100 - share) < 0.006 for number in re.findall(r"(\d+(?:\.\d+)?) ?%", text))


@contextmanager
def _timed(row: Row) -> Iterator[None]:
    """Note the seconds of processor time that planning takes, also where it ends in a refusal."""
    started = time.process_time()
    try:
        yield
    finally:
        row["planning_seconds"] = round(time.process_time() - started, 2)


def _planned(model: nn.Module, given: list[Any], network: Network) -> tuple[Plan, list[str]]:
    """Return the plan by default arguments, and the warnings."""
    loss = {} if network.loss is None else {"loss": network.loss}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            plan = plan_width(model, Budget(macs=ASKED), batches=given, **loss)
        except ValueError as error:
            if NOTHING in str(error):
                raise Ended("nothing", str(error), error) from error
            refused = isinstance(error, Refusal)
            raise Ended("refused" if refused else "failed", f"plan_width: {error}", error) from error
        except Exception as error:
            raise Ended("failed", f"plan_width: {type(error).__name__}: {error}") from error
    return plan, [str(warning.message) for warning in caught]
