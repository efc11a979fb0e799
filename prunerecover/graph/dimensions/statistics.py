"""Operations whose result depends on how many units there are: means over them, and arithmetic with their number.

To remove a unit is to set it to zero everywhere, at less cost. Sums do not notice; a mean does, for it divides by
another number. Norms are the exception: a statistic that goes back to the units that it was taken of, as in a LayerNorm
or RMSNorm that is written out, is over the units that stay, which is how narrowed norms are understood everywhere. A
sum divided by the number of units is not known as a mean: its units stay.

A mean, variance or standard deviation over units is followed until it meets them again, element by element. One that
gets anywhere else (another weight, a concatenation, the output) is noted in `Ties.statistics`, and so is at once what
units at zero have a part in wherever it goes: a product, or a sum of exponentials. The largest or smallest unit is
taken as one that stays, as it is after a ReLU; zeros are larger only where all others are negative.

A number that code reads off a shape is a plain Python number once it is computed with, so all of these are noted in
`Ties.arithmetic`: those of a narrowed network are compared with those of the dense one (`groups.dry_run`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from prunerecover.graph.dimensions.operation import Operation
from prunerecover.graph.dimensions.ties import Arithmetic, Statistic, Ties

AVERAGES = ("mean", "var", "var_mean", "std", "std_mean")
OVER_ALL = ("logsumexp", "prod")  # also over units at zero
VALUES = {"full": (1, "fill_value"), "full_like": (1, "fill_value"), "new_full": (2, "fill_value")}
FEW = 16
FACTORS = ("alpha", "beta", "scale")


def take_statistics(ties: Ties, operation: Operation, over: Sequence[Tensor]) -> None:
    """Note that the outputs of an operation are averages over units, or that it counts them wherever it goes.

    Args:
        ties: Ties of the forward pass.
        operation: That reduced dimensions.
        over: Ids of the units that lay along these.
    """
    found = tuple(Statistic(ids.flatten(), operation.name, ties.path) for ids in over)
    if operation.name in OVER_ALL:
        ties.statistics.extend(found)
    elif operation.name in AVERAGES and found:
        for out in operation.outputs:
            ties.note(out, replace(ties.info(out), statistics=found))


def statistics_read(ties: Ties, operation: Operation) -> tuple[Statistic, ...]:
    """Return the statistics over units that an operation reads."""
    return tuple(dict.fromkeys(s for tensor in operation.tensors for s in ties.info(tensor).statistics))


def follow_statistics(ties: Ties, operation: Operation, read: Sequence[Statistic], *, carries: bool) -> None:
    """Note which statistics are in the outputs of an operation, and which went where they do not norm.

    Args:
        ties: Ties of the forward pass, with what the operation's rule concluded.
        operation: That was run.
        read: The statistics that were in its operands.
        carries: Whether its outputs are computed element by element, or are its operands moved.
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
    """Note the Python numbers that an operation computes with; sizes and dimensions are none of them.

    Args:
        ties: Ties of the forward pass.
        operation: That was run.
        elementwise: Whether all numbers among its arguments are operands.
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
    if operation.name == "lift_fresh":  # of torch.tensor(number), or of a few
        value: Tensor = operation.args[0]
        return value.flatten().tolist() if value.numel() <= FEW and value.device.type == "cpu" else []
    return [operation.kwargs[name] for name in FACTORS if name in operation.kwargs]
