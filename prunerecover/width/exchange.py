"""What a unit of one kind counts for beside one of another: rates that the loss of the pruned model decides.

First-order scores order heads among heads and neurons among neurons. Between kinds they are off by a factor, for they
say what a small step costs, and to lose a head of three is not one. The factor depends on the model and on the budget,
so it is tried: units are chosen at some rates, removed for a moment, and the loss on calibration samples says which
rates are the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from prunerecover.width.groups import Group
from prunerecover.width.slices import Scores

Rates = dict[str, float]  # by kind
STEP, LARGEST = 2.0, 32.0


def exchange_rates(kinds: Sequence[str], loss_at: Callable[[Mapping[str, float]], float]) -> Rates:
    """Return the rates from which doubling or halving one alone lowers the loss no further, found one kind at a time.

    Args:
        kinds: The first one's rate is 1.
        loss_at: Of the model that is pruned at some rates; called three times or more per kind after the first.

    >>> exchange_rates(["neuron", "head"], lambda rates: abs(rates["head"] - 5))
    {'neuron': 1.0, 'head': 4.0}
    """
    rates = dict.fromkeys(kinds, 1.0)
    least = loss_at(rates)
    for kind in kinds[1:]:
        for step in (STEP, 1 / STEP):
            before = rates
            rates, least = _climb(rates, kind, step, least, loss_at)
            if rates is not before:
                break
    return rates


def weighted(groups: Sequence[Group], saliency: Scores, rates: Mapping[str, float]) -> Scores:
    """Return saliencies times the rate of their group's kind; kinds without one count as they are."""
    return {group.name: saliency[group.name] * rates.get(group.kind, 1.0) for group in groups}


def _climb(
    rates: Rates, kind: str, step: float, least: float, loss_at: Callable[[Mapping[str, float]], float]
) -> tuple[Rates, float]:
    while 1 / LARGEST <= rates[kind] * step <= LARGEST:
        tried = {**rates, kind: rates[kind] * step}
        found = loss_at(tried)
        if not found < least:  # nor is it where the loss is NaN
            break
        rates, least = tried, found
    return rates, least
