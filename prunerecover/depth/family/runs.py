"""Contiguous runs of blocks, as sets beside the one that a search finds block by block.

The search judges blocks one by one, each with a map of its own, or with nothing in its place where only blocks may go;
a linear map for a whole run may make up for more than that suggests. Runs are short-listed by how little they turn the
residual stream (ReplaceMe, arXiv 2505.02819, eq. 2), and those few are fitted and judged like any other set.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prunerecover.calibration.calibrator import Calibrator
from prunerecover.model.batches import is_padding
from prunerecover.plan.units import Unit

SHORT_LIST = 3


def nearest_runs(calibrator: Calibrator, units: Sequence[Unit], count: int) -> list[tuple[Unit, ...]]:
    """Return the contiguous runs whose ends are most alike, at most `SHORT_LIST`, the most alike first.

    Args:
        calibrator: Of the dense model.
        units: Blocks that may go, in order of depth. A run has a block before it, that a map can be folded into.
        count: Blocks in a run.
    """
    by_block = {calibrator.layout.block_of(unit.name): unit for unit in units}
    starts = [at for at in sorted(by_block) if at and all(at + i in by_block for i in range(count))]
    if not starts:
        return []
    alike = dict(zip(starts, _cosines(calibrator, starts, count), strict=True))
    best = sorted(starts, key=lambda at: -alike[at])[:SHORT_LIST]
    return [tuple(by_block[at + i] for i in range(count)) for at in best]


def _cosines(calibrator: Calibrator, starts: Sequence[int], count: int) -> list[float]:
    """Return the mean cosine of the stream before and after each run, over held-out tokens but padding."""
    totals = [0.0] * len(starts)
    for batch in calibrator.samples.held_out:
        states = [calibrator.runner.advance(batch, 0, None, 0)]
        for block in range(len(calibrator.layout.blocks)):
            states.append(calibrator.runner.advance(batch, block, states[-1], block + 1))
        for i, at in enumerate(starts):
            cosines = torch.cosine_similarity(states[at].float(), states[at + count].float(), dim=-1)
            totals[i] += float(cosines[~is_padding(batch, cosines)].sum())
    return totals
