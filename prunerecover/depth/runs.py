"""Contiguous runs of blocks, as papers remove them: short-listed by how little they turn the residual stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from prunerecover.depth.search.goals import Goal
from prunerecover.display.progress import progress
from prunerecover.families.describe import describe
from prunerecover.model.batches import ModelInputs, is_padding
from prunerecover.model.block_runner import BlockRunner
from prunerecover.plan.units import Unit

SHORT_LIST = 3
Distances = Callable[[ModelInputs, Tensor, Tensor], Tensor]  # of the stream before and after a run, some per batch


def cosine_distances(batch: ModelInputs, before: Tensor, after: Tensor) -> Tensor:
    """Return 1 - cos of each token but padding (ReplaceMe, arXiv 2505.02819, eq. 2).

    Args:
        batch: Says what is padding.
        before: The residual stream, `(N, ..., C)`.
        after: The same, behind the run.
    """
    cosines = torch.cosine_similarity(before.float(), after.float(), dim=-1)
    return 1 - cosines[~is_padding(batch, cosines)]


def angles_at_the_end(batch: ModelInputs, before: Tensor, after: Tensor) -> Tensor:
    """Return the angle at the last token of each sample, in units of pi (Gromov et al., arXiv 2403.17887, sec. 3).

    Arguments are those of `cosine_distances`.
    """
    cosines = torch.cosine_similarity(before.float(), after.float(), dim=-1).flatten(1)
    tokens = (~is_padding(batch, cosines)).long().cumsum(1)
    last = tokens.argmax(1, keepdim=True)  # the first place where all are counted
    return cosines.gather(1, last).clamp(-1, 1).arccos().flatten() / math.pi


def runs_for(
    goal: Goal,
    model: nn.Module,
    scores: Mapping[str, float],
    batches: Sequence[ModelInputs],
    distances: Distances = cosine_distances,
) -> list[tuple[Unit, ...]]:
    """Return the contiguous runs that meet a goal whose ends are most alike, at most `SHORT_LIST`, these first.

    Args:
        goal: Goal, met by a run of as few blocks as possible.
        model: Dense network of a supported family, in evaluation mode.
        scores: Importance by unit name: the order in which the blocks of a run go.
        batches: Samples on the network's device.
        distances: Distances of the residual stream before and after a run, averaged over tokens.
    """
    blocks, layout = [unit for unit in goal.units_to_score() if unit.kind == "block"], describe(model)
    count = _length(goal, blocks)
    by_block = {layout.block_of(unit.name): unit for unit in blocks}
    starts = [at for at in sorted(by_block) if all(at + i in by_block for i in range(count))]
    if not starts:
        return []
    found = _means(BlockRunner(model, layout.container), starts, count, batches, distances)
    best = sorted(starts, key=dict(zip(starts, found, strict=True)).__getitem__)[:SHORT_LIST]
    runs = [sorted((by_block[at + i] for i in range(count)), key=lambda unit: scores[unit.name]) for at in best]
    return [tuple(run) for run in runs if goal.reached(run) >= 1]


def _length(goal: Goal, blocks: Sequence[Unit]) -> int:
    """Return how many blocks meet a goal at least; all of them, if these do not."""
    price = goal.price(blocks[:1]) if blocks else 0.0
    least = max(int(1 / price), 1) if price > 0 else len(blocks)
    return next((n for n in range(least, len(blocks)) if goal.reached(blocks[:n]) >= 1), len(blocks))


def _means(
    runner: BlockRunner, starts: Sequence[int], count: int, batches: Sequence[ModelInputs], distances: Distances
) -> list[float]:
    """Return the mean distance between the two ends of each run."""
    totals, number = [0.0] * len(starts), 0
    with progress("comparing runs of blocks", len(batches)) as advance:
        for batch in batches:
            states = [runner.advance(batch, 0, None, 0)]
            for block in range(len(runner.blocks)):
                states.append(runner.advance(batch, block, states[-1], block + 1))
            found = [distances(batch, states[at], states[at + count]) for at in starts]
            totals = [total + float(one.sum()) for total, one in zip(totals, found, strict=True)]
            number += len(found[0])
            advance()
    return [total / max(number, 1) for total in totals]
