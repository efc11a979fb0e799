"""What output divergences before any training say of accuracies after it: a rough copy of them, of unknown scale.

The accuracy that a split loses is taken to be about proportional to the divergence of the network as planned, which
costs no run. So the divergences are observations of the surface: all from one height, which is unknown, each off by
about a tenth of what the split loses, in part like its neighbours. On real DeiT-Tiny the correlation is 0.97 and the
scatter 8% of the loss (`benchmarks/boundary/boundary_divergences.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from prunerecover.boundary.designs import Split
from prunerecover.boundary.map_points import check_inside, kept_fractions
from prunerecover.boundary.surfaces import Array

HEIGHT = 40.0  # points: prior sd of the accuracy at divergence 0
COMMON, OWN = 0.06, 0.08  # scatter as a share of the loss: what neighbours share, and what they do not
Kernel = Callable[..., Array]


@dataclass(frozen=True, eq=False)
class Guide:
    """Divergences of splits.

    Args:
        kept: `(M, 2)` fractions of attentions and activations.
        relative: `(M,)` divergences, as multiples of their geometric mean.
    """

    kept: Array
    relative: Array


def guide_of(divergences: Mapping[Split, float], layers: tuple[int, int]) -> Guide | None:
    """Return what divergences say; None if that is nothing: one is 0, or all are the same.

    Raises:
        ValueError: If one is negative, NaN or infinite, or a split does not fit the model.
    """
    check_inside(divergences, layers)
    values = np.array(list(divergences.values()), dtype=np.float64)
    if not np.isfinite(values).all() or (values < 0).any():
        raise ValueError(
            f"Expected divergences of at least 0, but got {dict(divergences)}. They are those of `plan_depth`'s "
            "evidence, before any training."
        )
    if not len(values) or not values.min() > 0 or np.ptp(values) == 0:
        return None
    return Guide(kept_fractions(divergences, layers), values / np.exp(np.log(values).mean()))


@dataclass(frozen=True, eq=False)
class GuidedProcess:
    """A Gaussian process that has seen divergences and runs, for one scale of the divergences.

    Args:
        kernel: Of the surface.
        seen: `(N, 2)` kept fractions, of the divergences and then of the runs.
        factor: Of the covariance `(N, N)` of all that was seen, by Cholesky.
        values: `(N,)` seen, in points.
        log_evidence: Log density of the runs, the divergences given.
    """

    kernel: Kernel
    seen: Array
    factor: Array
    values: Array
    log_evidence: float

    def posterior(self, kept: Array) -> tuple[Array, Array]:
        """Return the expected accuracies `(M,)` and their covariance `(M, M)`."""
        across = self.kernel(kept, self.seen)
        mean = across @ cho_solve((self.factor, True), self.values)
        return mean, self.kernel(kept) - across @ cho_solve((self.factor, True), across.T)


def fit_guided(
    kernel: Kernel, common: Kernel, kept: Array, accuracy: Array, noise: float, guide: Guide, lost: float
) -> GuidedProcess:
    """Condition a process on divergences and runs.

    Args:
        kernel: Of the surface.
        common: Correlation of the scatter of splits.
        kept: `(N, 2)` fractions of attentions and activations that the runs kept.
        accuracy: `(N,)` in percent.
        noise: Standard deviation of one run in points.
        guide: The divergences.
        lost: Points that a split of mean divergence loses.
    """
    n = len(guide.kept)
    seen, values = np.vstack([guide.kept, kept]), np.concatenate([-lost * guide.relative, accuracy])
    covariance = kernel(seen)
    scatter = COMMON**2 * common(guide.kept) + OWN**2 * np.eye(n)
    covariance[:n, :n] += HEIGHT**2 + lost**2 * np.outer(guide.relative, guide.relative) * scatter
    covariance[n:, n:] += noise**2 * np.eye(len(kept))
    factor = cho_factor(covariance, lower=True)[0]
    # The leading block of a Cholesky factor is that of the leading block: the divergences alone.
    whole, alone = (_log_density(factor[:m, :m], values[:m]) for m in (len(values), n))
    return GuidedProcess(kernel, seen, factor, values, whole - alone)


def _log_density(factor: Array, values: Array) -> float:
    """Return the log density of values that a Gaussian of mean 0 draws."""
    fit = float(values @ cho_solve((factor, True), values))
    return -0.5 * (fit + len(values) * np.log(2 * np.pi)) - float(np.log(np.diag(factor)).sum())
