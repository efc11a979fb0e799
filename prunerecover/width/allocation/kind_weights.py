"""Weights between kinds: the weight of a head beside a neuron, chosen by the pruned model's output.

First-order scores order heads among heads and neurons among neurons. Between kinds scores are off by a factor, as they
measure the cost of a small step, and the loss of a head of three is no small step. Scores also ignore that fewer
remaining units of a group are dearer. The size of both effects depends on the model and on the budget, so several
weightings are tried: each narrows a copy of the model, and the weighting with the least divergence of the copy's output
from the dense model's is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.plan.groups import Group

FACTORS = (0.25, 4.0, 16.0), (0.5, 2.0)  # factors on the best rate: first far, then near


@dataclass(frozen=True)
class KindWeights:
    """Weights of scores.

    Attributes:
        rates: Factor by kind; 1 for unnamed kinds.
        damping: Damping of `per_cost`.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    damping: float = 0.0


def best_kind_weights(kinds: Sequence[str], divergence_at: Callable[[KindWeights], float]) -> KindWeights:
    """Return the best rate for every kind, searched kind by kind, and the damping of groups.

    The number of calls is always `number_of_trials(kinds)`, so that processes that plan together stay in step.

    Args:
        kinds: Kinds of units; the rate of the first is 1, and further rates start at 1. Damping is 1, and 0 is tried
            last.
        divergence_at: Divergence of the output from the dense model's, with units chosen by given weights.

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
            rates = [{**best.rates, kind: best.rates[kind] * factor} for factor in factors]
            keep_the_best([replace(best, rates=tried) for tried in rates])
    keep_the_best([replace(best, damping=0.0)])
    return best


def number_of_trials(kinds: Sequence[str]) -> int:
    """Return the number of divergences in `best_kind_weights`.

    >>> number_of_trials(["neuron", "head"])
    7
    """
    return 2 + sum(map(len, FACTORS)) * (len(kinds) - 1)


def weighted(groups: Sequence[Group], scores: Scores, rates: Mapping[str, float]) -> Scores:
    """Return scores times the rate of the group's kind; 1 for kinds without a rate.

    Args:
        groups: Groups of the scores.
        scores: Scores `(size,)` by group name.
        rates: Rates by kind.
    """
    return {group.name: scores[group.name] * rates.get(group.kind, 1.0) for group in groups}


def _or_infinite(divergence: float) -> float:
    return math.inf if math.isnan(divergence) else divergence
