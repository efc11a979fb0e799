"""Operations with results that depend on the number of units: means over units, and arithmetic with the number.

The removal of a unit equals a unit set to zero, at less cost. A sum does not change, but a mean divides by another
number. Norms are the exception: a statistic applied to the same units, as in a written-out LayerNorm or RMSNorm, is
taken over the remaining units, the usual meaning of a narrowed norm. A sum divided by the number of units is not
recognised as a mean: the units stay.

A mean, variance or standard deviation over units is followed until it meets its units again, element by element. A
statistic with another destination (a further weight, a concatenation, the output) is noted in `Ties.statistics`.
Products and sums of exponentials, where units at zero always count, are noted there at once. The largest or smallest
unit is assumed to be a remaining one, as behind a ReLU; a zero is larger only where all other units are negative.

A number read off a shape is a plain Python number in later arithmetic. All numbers in arithmetic are noted in
`Ties.arithmetic`, and `groups.dry_run` compares a narrowed network with the dense network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from prunerecover.graph.dimensions.ties import Arithmetic, Statistic, Ties
from prunerecover.graph.dimensions.watching import Operation

AVERAGES = ("mean", "var", "var_mean", "std", "std_mean")
OVER_ALL = ("logsumexp", "prod")  # also over units at zero
VALUES = {"full": (1, "fill_value"), "full_like": (1, "fill_value"), "new_full": (2, "fill_value")}
FEW = 16
FACTORS = ("alpha", "beta", "scale")


def take_statistics(ties: Ties, operation: Operation, over: Sequence[Tensor]) -> None:
    """Note averages over units in the outputs of an operation, or at once a statistic that counts units at zero.

    Args:
        ties: Ties of the forward pass.
        operation: Operation over the reduced dimensions.
        over: Ids of the units along the reduced dimensions.
    """
    found = tuple(Statistic(ids.flatten(), operation.name, ties.path) for ids in over)
    if operation.name in OVER_ALL:
        ties.statistics.extend(found)
    elif operation.name in AVERAGES and found:
        for out in operation.outputs:
            ties.note(out, replace(ties.info(out), statistics=found))


def statistics_read(ties: Ties, operation: Operation) -> tuple[Statistic, ...]:
    """Return the statistics over units among an operation's operands."""
    return tuple(dict.fromkeys(s for tensor in operation.tensors for s in ties.info(tensor).statistics))


def follow_statistics(ties: Ties, operation: Operation, read: Sequence[Statistic], *, carries: bool) -> None:
    """Note the statistics in the outputs of an operation, and the statistics used for more than a norm.

    Args:
        ties: Ties of the forward pass, with the conclusions of the operation's rule.
        operation: Executed operation.
        read: Statistics in the operands.
        carries: Whether the outputs are computed element by element, or are moved operands.
    """
    if not read:
        return
    if not carries:
        ties.statistics.extend(read)
        return
    maps = [ids for tensor in operation.tensors for ids in ties.info(tensor).maps]
    on = tuple(s for s in read if not any(bool(torch.isin(s.ids, ids).any()) for ids in maps))
    for out in operation.outputs:
        info = ties.info(out)
        ties.note(out, replace(info, statistics=(*info.statistics, *on)))


def note_numbers(ties: Ties, operation: Operation, *, elementwise: bool) -> None:
    """Note the Python numbers in an operation's arithmetic, without sizes and dimensions.

    Args:
        ties: Ties of the forward pass.
        operation: Executed operation.
        elementwise: Whether all numbers among the arguments are operands.
    """
    numbers = tuple(float(n) for n in _operands(operation, elementwise) if type(n) in (int, float))
    if numbers:
        ties.arithmetic.append(Arithmetic(operation.name, ties.path, numbers))


def _operands(operation: Operation, elementwise: bool) -> list[Any]:
    if elementwise:
        return tree_leaves((operation.args, operation.kwargs))
    if operation.name in VALUES:
        return [operation.argument(*VALUES[operation.name])]
    if operation.name == "scalar_tensor":
        return [operation.args[0]]
    if operation.name == "lift_fresh":  # from torch.tensor with a number, or a few
        value: Tensor = operation.args[0]
        return value.flatten().tolist() if value.numel() <= FEW and value.device.type == "cpu" else []
    return [operation.kwargs[name] for name in FACTORS if name in operation.kwargs]
