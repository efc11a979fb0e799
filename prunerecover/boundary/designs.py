"""Experimental designs: the feasible splits of a depth budget, and the splits to train first.

A *split* is a pair (attention, activation): numbers of removed units of each type. The splits of a budget in layers
have the same sum, a line; a budget in cost leaves a staircase close to a line. An accuracy map (`accuracy_map`) is
fitted to short training runs at a few splits from these functions. `axes_and_staircase` is the design of the published
table of BoundaryDPT (arXiv 2607.03784), and `spread` is ours: runs lie on the feasible splits, the splits in question.
Algorithms 1 and 2 of the paper are no designs here: no polynomial can be fitted to their runs alone. `next_split`
chooses runs by earlier results.
"""

from __future__ import annotations

from collections.abc import Sequence

Split = tuple[int, int]
Layers = int | tuple[int, int]  # units of the dense model: (attention, activation), or one number for both
ROUNDING = 1e-9  # tolerance for sums of shares that equal the budget on paper


def layer_counts(layers: Layers) -> tuple[int, int]:
    """Return the number of attention and activation units of the dense model, from a pair or a common number.

    Raises:
        ValueError: If a number is below 1.
    """
    attention, activation = (layers, layers) if isinstance(layers, int) else layers
    if min(attention, activation) < 1:
        raise ValueError(
            f"Expected at least one attention and one activation unit, but got layers={layers}. "
            "Pass the numbers of the dense model."
        )
    return attention, activation


def feasible_splits(layers: Layers, *, n_remove: int | None = None, n_keep: int | None = None) -> tuple[Split, ...]:
    """List all splits of a budget in layers, fewest attentions first.

    Args:
        layers: Number of attention and activation units of the dense model, as a pair or a common number.
        n_remove: Number of units to remove, both types together.
        n_keep: Number of units to keep, both types together. Exactly one of the two is given.

    Raises:
        ValueError: If none or both are given, or the model has too few units.

    >>> feasible_splits(2, n_remove=3)
    ((1, 2), (2, 1))
    """
    attention, activation = layer_counts(layers)
    total = attention + activation
    if (n_remove is None) == (n_keep is None):
        raise ValueError(
            f"Expected exactly one of n_remove and n_keep, but got n_remove={n_remove}, n_keep={n_keep}. "
            f"Of {total} units, n_remove=k keeps {total} - k."
        )
    removed = n_remove if n_remove is not None else total - (n_keep or 0)
    if not 0 <= removed <= total:
        raise ValueError(
            f"Expected a budget between 0 and the {total} units of the model, but got n_remove={n_remove}, "
            f"n_keep={n_keep}. Both count attention and activation units together."
        )
    return tuple((n, removed - n) for n in range(max(0, removed - activation), min(attention, removed) + 1))


def affordable_splits(
    layers: Layers, attention_share: float, activation_share: float, budget: float
) -> tuple[Split, ...]:
    """List the splits that just meet a budget in cost, fewest attentions first.

    For each number of attentions, the least number of activations is taken; a split is dropped if a split with fewer
    attentions has the same number of activations. Shares are assumed additive: MACs are, latency nearly is.

    Args:
        layers: Number of attention and activation units of the dense model, as a pair or a common number.
        attention_share: Measured share of the cost of the model (MACs, latency) per attention.
        activation_share: Measured share per activation, once its linears are merged.
        budget: Share of the cost to remove.

    Raises:
        ValueError: If a share is not between 0 and 1, or removing everything does not meet the budget.

    >>> affordable_splits(4, attention_share=0.05, activation_share=0.10, budget=0.25)
    ((0, 3), (1, 2), (3, 1))
    """
    attention, activation = layer_counts(layers)
    for name, share in {"attention_share": attention_share, "activation_share": activation_share}.items():
        if not 0 < share < 1:
            raise ValueError(f"Expected {name} between 0 and 1 (exclusive), but got {share}. Measure one removal.")
    most = attention * attention_share + activation * activation_share
    if not 0 <= budget <= most + ROUNDING:
        raise ValueError(
            f"Expected a budget between 0 and {most:.3f}, the share that goes when all units go, but got {budget}. "
            "Lower it, or prune widths as well."
        )
    frontier: list[Split] = []
    for n in range(attention + 1):
        cheapest = _fewest(budget - n * attention_share, activation_share, activation)
        if cheapest is not None and (not frontier or cheapest < frontier[-1][1]):
            frontier.append((n, cheapest))
    return tuple(frontier)


def spread(splits: Sequence[Split], runs: int) -> tuple[Split, ...]:
    """Choose splits at even distances along the feasible splits, with both ends.

    Args:
        splits: Feasible splits, in order.
        runs: Number of splits to choose; all if there are no more.

    Raises:
        ValueError: If there is no split, or `runs` is below two.

    >>> spread(feasible_splits(12, n_remove=8), 4)
    ((0, 8), (3, 5), (5, 3), (8, 0))
    """
    if not splits or runs < 2:
        raise ValueError(
            f"Expected at least one split and two runs, but got {len(splits)} splits and {runs} runs. "
            "A curve needs three runs; see next_split for further ones."
        )
    last = len(splits) - 1
    return tuple(splits[i] for i in sorted({round(step * last / (runs - 1)) for step in range(runs)}))


def one_type_at_a_time(layers: Layers, n_remove: int) -> tuple[Split, ...]:
    """Return the runs of Algorithm 1 (arXiv 2607.03784): dense, attentions alone step by step, activations alone.

    No run removes both types, so a polynomial of degree 2 cannot be fitted to these runs alone.

    Raises:
        ValueError: If the model has fewer than `n_remove` units.
    """
    attention, activation = _budgeted(layers, n_remove)
    alone = [(n, 0) for n in range(1, min(n_remove, attention) + 1)]
    return ((0, 0), *alone, *((0, n) for n in range(1, min(n_remove, activation) + 1)))


def axes_and_staircase(layers: Layers, n_remove: int = 8) -> tuple[Split, ...]:
    """Return the design of the published table of BoundaryDPT: both axes and a staircase with both types removed.

    With 12 layers and the default these are the 22 runs of the paper: dense, 8 with attentions removed, 8 with
    activations removed, and (1, 1), (1, 2), (2, 2), (2, 3), (3, 3).

    Args:
        layers: Number of attention and activation units of the dense model, as a pair or a common number.
        n_remove: Number of removed units in the last run along an axis; at most all units of the type.

    Raises:
        ValueError: If the model has fewer than `n_remove` units.
    """
    attention, activation = layer_counts(layers)
    staircase = [((n + 2) // 2, (n + 3) // 2) for n in range(5)]
    inside = (split for split in staircase if split[0] <= attention and split[1] <= activation)
    return (*one_type_at_a_time(layers, n_remove), *inside)


def _budgeted(layers: Layers, n_remove: int) -> tuple[int, int]:
    attention, activation = layer_counts(layers)
    if not 0 <= n_remove <= attention + activation:
        raise ValueError(
            f"Expected n_remove between 0 and the {attention + activation} units of the model, but got {n_remove}. "
            "It counts attention and activation units together."
        )
    return attention, activation


def _fewest(missing: float, share: float, most: int) -> int | None:
    """Return the least number of units, at most `most`, with enough shares for `missing`; None if all are too few."""
    return next((n for n in range(most + 1) if n * share >= missing - ROUNDING), None)
