"""What a unit of one kind counts for beside one of another: rates that the pruned model's output decides.

First-order scores order heads among heads and neurons among neurons. Between kinds they are off by a factor, for they
say what a small step costs, and to lose a head of three is not one. The factor depends on the model and on the budget,
so several are tried: a copy of the model is narrowed at each, and the rate stays whose copy's output diverges least
from the dense model's. Depth is decided alike (`calibrated`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from prunerecover.width.groups import Group
from prunerecover.width.slices import Scores

Rates = dict[str, float]  # by kind
COARSE = (0.25, 4.0, 16.0)
FINE = (0.5, 2.0)


def exchange_rates(kinds: Sequence[str], divergence_at: Callable[[Mapping[str, float]], float]) -> Rates:
    """Return a rate for every kind, found for one after the other: first in steps of four, then one of two.

    It takes `trials(kinds)`, whatever they bring, so that processes that plan together stay together.

    Args:
        kinds: The first one's rate is 1, and that of the others as long as it is not their turn.
        divergence_at: How far the output is from the dense model's, if units are chosen at some rates.

    >>> exchange_rates(["neuron", "head"], lambda rates: abs(rates["head"] - 9))
    {'neuron': 1.0, 'head': 8.0}
    """
    rates = dict.fromkeys(kinds, 1.0)
    least = _or_infinite(divergence_at(rates))
    for kind in kinds[1:]:
        for factors in (COARSE, FINE):
            around = rates
            for factor in factors:
                tried = {**around, kind: around[kind] * factor}
                found = _or_infinite(divergence_at(tried))
                if found < least:
                    rates, least = tried, found
    return rates


def trials(kinds: Sequence[str]) -> int:
    """Return how often `exchange_rates` asks for a divergence.

    >>> trials(["neuron", "head"])
    6
    """
    return 1 + (len(COARSE) + len(FINE)) * (len(kinds) - 1)


def weighted(groups: Sequence[Group], saliency: Scores, rates: Mapping[str, float]) -> Scores:
    """Return saliencies times the rate of their group's kind; kinds without one count as they are."""
    return {group.name: saliency[group.name] * rates.get(group.kind, 1.0) for group in groups}


def _or_infinite(divergence: float) -> float:
    return math.inf if math.isnan(divergence) else divergence
