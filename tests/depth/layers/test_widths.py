"""The widths that are carried along a sequence of prunings are those that a fresh trace of the pruned network finds."""

from __future__ import annotations

from collections import defaultdict
from itertools import cycle

import numpy as np
import pytest
from cases.depth.architectures import ARCHITECTURES
from cases.depth.removal import pruned, random_sequence, removals_in
from cases.sampling import one_in
from torch import nn

from prunerecover import find_groups
from prunerecover.depth.layers.widths import FIXED, Widths
from prunerecover.plan.groups import Group

Place = tuple[str, int, int]  # a tensor, a dimension, and an index
NAMES = ("resnet18", "unet", "detector", "densenet", "mixer", "llama", "deit", "squeezenet", "vgg", "split")


def partition(widths: Widths, tensors: set[str]) -> dict[Place, frozenset[Place]]:
    """By index, all indices that go with it."""
    members: dict[int, set[Place]] = defaultdict(set)
    for (tensor, dim), units in widths.along.items():
        if tensor in tensors:
            for index in np.flatnonzero(units != FIXED).tolist():
                members[int(units[index])].add((tensor, dim, index))
    return {place: frozenset(own) for own in members.values() for place in own}


def groups_left(network: nn.Module, batch: object) -> tuple[Group, ...]:
    try:
        return find_groups(network, batch).groups
    except ValueError as error:  # all widths are fixed by now
        assert "no product with weights makes units that only other products read" in str(error)  # noqa: PT017
        return ()


@pytest.mark.parametrize(("name", "seed"), one_in(5, zip(NAMES, cycle(range(3)))))
def test_carried_units_are_those_of_a_fresh_trace(name: str, seed: int) -> None:
    _, batch = ARCHITECTURES[name]()
    removals = removals_in(name, ("layer",))
    units = random_sequence(removals, 4, seed)
    left = pruned(removals, units)
    state = removals.after(tuple(unit.name for unit in units))
    tensors = {n for n, p in left.named_parameters() if p.numel()}
    fresh = Widths.of(left, groups_left(left, batch))
    carried, found = partition(state.widths, tensors), partition(fresh, tensors)
    assert carried or not found
    for place in carried.keys() & found.keys():
        # An identity path in a sum of copies may tie fewer indices once patched: never does carrying tie fewer.
        assert carried[place] >= found[place], place
    for tensor, dim, index in carried.keys() - found.keys():  # the last unit of its kind, or of each half
        run = state.widths.run
        assert (run == run[int(state.widths.along[tensor, dim][index])]).sum() <= (2 if name == "split" else 1)
