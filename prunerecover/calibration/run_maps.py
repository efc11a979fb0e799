"""Linear maps in the place of runs of removed blocks, folded into the linear before the run.

With M the output of the branch before the run, x the stream before that branch, and h the dense stream after the run, T
= argmin sum_t w_t |x_t + s T M_t - h_t|^2 / |h_t|^2 + ridge |T - I|^2 (ReplaceMe, Shopkhoev et al. 2025, arXiv
2505.02819, eq. 5, without weights or norms, and without shrinkage towards T = I, a run removed without a map). Errors
are relative to the stream, because the next block's norm divides by it: some decoders give their first token a stream
hundreds of times as long, and that token alone would decide the fit. The stream is the pruned network's, so each map
also corrects for earlier replacements. T moves into the linear's weight, without a new parameter. Not covered: scales
or norms between the linear and the stream (LayerScale; Gemma 2, OLMo 2), and norms after the addition (BERT). Removed
blocks leave nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from prunerecover.calibration.candidates import Candidate
from prunerecover.calibration.regression import AffineRegression
from prunerecover.families.layout import Block
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Fold, Remove
from prunerecover.plan.units import Unit
from prunerecover.surgery.folding import folded_map

RIDGE = 1.0  # relative to the mean square of the branch's output; less overfits: held-out text and recovery suffer
ROUNDING = 0.02  # relative difference of sums in half precision


class RunFit:
    """Sums over calibration tokens, solved for the map in the place of a run of blocks.

    Args:
        model: Model, unwrapped.
        block: Block before the run, in the present state.

    Attributes:
        reason: Reason why no linear can take a map; "" if a linear can, or before the first batch.
    """

    def __init__(self, model: nn.Module, block: Block) -> None:
        self.branch = block.mlp or block.attention
        self._model, self._into, self._sums = model, "", AffineRegression()
        self._linears = self._plain_linears()
        self.reason = "" if self._linears else f"'{block.path}' has no branch with a plain linear left"

    @property
    def paths(self) -> tuple[str, ...]:
        """Modules whose inputs and outputs `add` reads, as `<path>.in` and `<path>.out`."""
        return () if self.branch is None else (*self.branch.before, self.branch.last, *self._linears)

    def find_place(self, seen: Mapping[str, Tensor], after: Tensor) -> None:
        """Find the linear whose output is added to the stream, or note the reason why no linear can take a map.

        Args:
            seen: Inputs and outputs of the modules in `paths` in the pruned model, `(N, ..., C)`.
            after: Output of the block in the pruned model, `(N, ..., C)`.
        """
        if self.branch is not None and not self.reason:
            self._into = self._find_linear(seen, seen[f"{self.branch.last}.out"])
            self.reason = self._reason(seen, after)

    def add(self, seen: Mapping[str, Tensor], target: Tensor, weight: Tensor) -> None:
        """Add a batch, after `find_place`.

        Args:
            seen: Inputs and outputs of the modules in `paths`, as in `find_place`.
            target: Output of the run's last block in the dense model, `(N, ..., C)`.
            weight: Token weights, `(N, ...)`.
        """
        assert self.branch is not None
        stream = self._rows(target).float()
        wanted = (stream - self._rows(self.branch.state_before(seen)).float()) / self.branch.scale
        relative = weight.flatten() / stream.square().mean(-1).clamp_min(1e-30)
        self._sums.add(self._rows(seen[f"{self.branch.last}.out"]), wanted, relative)

    def candidates(self, last: Unit) -> list[Candidate]:
        """Return the solved candidate; none if no linear can take a map.

        Args:
            last: The last block of the run.
        """
        if self.branch is None or self.reason:
            return []
        affine = isinstance(get_module(self._model, self._into).bias, Tensor)
        weight, offset = self._sums.solve(RIDGE, torch.eye(self.branch.dim), constant=affine)
        values = {"weight": weight, "bias": offset} if affine else {"weight": weight}
        fold = Fold(unit=last.name, into=self._into)
        return [Candidate(Remove(unit=last.name, kind="block"), values, fold, RIDGE)]

    def _plain_linears(self) -> tuple[str, ...]:
        """Return the branch's linears with plain parameters as weights."""
        if self.branch is None:
            return ()
        own = ((path, get_module(self._model, path)) for path in (self.branch.path, *self.branch.then))
        names = (f"{path}.{name}" if name else path for path, top in own for name, _ in top.named_modules())
        return tuple(name for name in names if _can_fold(self._model, name))

    def _find_linear(self, seen: Mapping[str, Tensor], out: Tensor) -> str:
        """Return the linear whose output is added to the stream; "" if there is none."""
        for path in reversed(self._linears):
            own = seen.get(f"{path}.out")
            if own is not None and own.numel() == out.numel() and torch.equal(own.reshape(out.shape), out):
                return path
        return ""

    def _reason(self, seen: Mapping[str, Tensor], after: Tensor) -> str:
        assert self.branch is not None
        if after.shape[-1] != self.branch.dim:
            return f"the {self.branch.dim} channels of '{self.branch.path}' are not in the last dimension"
        if not self._into:
            return f"what '{self.branch.last}' adds to the stream is not the output of a plain linear"
        expected, found = self._rows(self.branch.state_after(seen)).float(), self._rows(after).float()
        apart = (expected - found).norm() / found.norm().clamp_min(1e-30)
        return "" if apart < ROUNDING else f"the stream is normalised behind '{self.branch.last}'"

    def _rows(self, x: Tensor) -> Tensor:
        assert self.branch is not None
        return x.reshape(-1, self.branch.dim)


def _can_fold(model: nn.Module, path: str) -> bool:
    try:
        folded_map(model, Fold(unit=path, into=path), None)
    except ValueError:  # no linear, or its weight is computed, quantised or shared
        return False
    return True
