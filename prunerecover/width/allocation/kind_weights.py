"""Weights between kinds: how much a head counts beside a neuron, tried on the pruned model's output.

First-order scores order heads among heads and neurons among neurons. Between kinds they are off by a factor, for they
say what a small step costs, and to lose a head of three is not one. Nor do they say that a unit is dearer the fewer
are left of its group. How much depends on the model and on the budget, so several weighings are tried: a copy of the
model is narrowed by each, and the one stays whose copy's output diverges least from the dense model's. Depth is decided
alike (`calibrator`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.plan.groups import Group

FACTORS = (0.25, 4.0, 16.0), (0.5, 2.0)  # of a rate: first far, then near what was best


@dataclass(frozen=True)
class KindWeights:
    """How scores count.

    Attributes:
        rates: A factor by kind; kinds that are not named count as they are.
        damping: Of `per_cost`.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    damping: float = 0.0


def best_kind_weights(kinds: Sequence[str], divergence_at: Callable[[KindWeights], float]) -> KindWeights:
    """Return a rate for every kind, found for one after the other, and whether groups are damped.

    It takes `number_of_trials(kinds)`, whatever they bring, so that processes that plan together stay together.

    Args:
        kinds: The first one's rate is 1, and that of the others as long as it is not their turn. Damping is 1, and
            last of all 0 is tried.
        divergence_at: How far the output is from the dense model's, if units are chosen by a weighing.

    >>> best_kind_weights(["neuron", "head"], lambda tried: abs(tried.rates["head"] - 9) + tried.damping)
    KindWeights(rates={'neuron': 1.0, 'head': 8.0}, damping=0.0)
    """
    best = KindWeights(dict.fromkeys(kinds, 1.0), damping=1.0)
    least = _or_infinite(divergence_at(best))

    def keep_the_best(others: Sequence[KindWeights]) -> None:
        nonlocal best, least
        for tried in others:
            found = _or_infinite(divergence_at(tried))
            if found < least:
                best, least = tried, found

    for kind in kinds[1:]:
        for factors in FACTORS:
            keep_the_best([_at_another_rate(best, kind, factor) for factor in factors])
    keep_the_best([replace(best, damping=0.0)])
    return best


def number_of_trials(kinds: Sequence[str]) -> int:
    """Return how often `best_kind_weights` asks for a divergence.

    >>> number_of_trials(["neuron", "head"])
    7
    """
    return 2 + sum(map(len, FACTORS)) * (len(kinds) - 1)


def weighted(groups: Sequence[Group], scores: Scores, rates: Mapping[str, float]) -> Scores:
    """Return scores times the rate of their group's kind; kinds without one count as they are.

    Args:
        groups: Whose scores they are.
        scores: `(size,)` by group name.
        rates: By kind.
    """
    return {group.name: scores[group.name] * rates.get(group.kind, 1.0) for group in groups}


def _at_another_rate(weighing: KindWeights, kind: str, factor: float) -> KindWeights:
    return replace(weighing, rates={**weighing.rates, kind: weighing.rates[kind] * factor})


def _or_infinite(divergence: float) -> float:
    return math.inf if math.isnan(divergence) else divergence
