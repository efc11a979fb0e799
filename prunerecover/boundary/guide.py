"""Output divergences before any training, as a rough copy, of unknown scale, of the accuracies after it.

The accuracy that a split loses is taken to be about proportional to the divergence of the network as planned, which
costs no run. So the divergences are observations of the surface: all from one height, which is unknown, each off by
about a tenth of what the split loses, in part like its neighbours. On real DeiT-Tiny they correlate by 0.992, and the
scatter is 4% of the loss (`benchmarks/boundary/boundary_divergences.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prunerecover.boundary.designs import Split
from prunerecover.boundary.map_points import check_inside, kept_fractions
from prunerecover.boundary.surfaces import Array

HEIGHT = 40.0  # points: prior sd of the accuracy at divergence 0
COMMON, OWN = 0.06, 0.08  # scatter as a share of the loss: what neighbours share, and what they do not
ROUNDING = 1e-6  # of a divergence, in single precision; it may be negative by that
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
    """Return what divergences say; None if that is nothing: one is 0, or all are the same, up to rounding.

    Raises:
        ValueError: If one is NaN or infinite, or a split does not fit the model.
    """
    check_inside(divergences, layers)
    values = np.array(list(divergences.values()), dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError(
            f"Expected finite divergences, but got {dict(divergences)}. Do outputs of the pruned network overflow? "
            "Plan in single precision, or leave something else in the place of what goes."
        )
    if not len(values) or values.min() <= ROUNDING or np.ptp(values) <= ROUNDING:
        return None
    return Guide(kept_fractions(divergences, layers), values / np.exp(np.log(values).mean()))


@dataclass(frozen=True, eq=False)
class GuidedProcesses:
    """Gaussian processes that have seen divergences and runs, one for each of S scales of the divergences.

    Args:
        kernel: Of the surface.
        seen: `(N, 2)` kept fractions, of the divergences and then of the runs.
        precision: `(S, N, N)` inverse covariance of all that was seen.
        values: `(S, N)` seen, in points.
        log_evidence: `(S,)` log density of the runs, the divergences given.
    """

    kernel: Kernel
    seen: Array
    precision: Array
    values: Array
    log_evidence: Array

    def posterior(self, kept: Array) -> tuple[Array, Array]:
        """Return the expected accuracies `(S, M)` and their covariance `(S, M, M)`."""
        across = self.kernel(kept, self.seen)
        gain = across @ self.precision
        mean: Array = (gain @ self.values[..., None])[..., 0]
        return mean, self.kernel(kept) - gain @ across.T


def fit_guided(
    kernel: Kernel, common: Kernel, kept: Array, accuracy: Array, noise: float, guide: Guide, lost: Sequence[float]
) -> GuidedProcesses:
    """Condition processes on divergences and runs.

    Args:
        kernel: Of the surface.
        common: Correlation of the scatter of splits.
        kept: `(N, 2)` fractions of attentions and activations that the runs kept.
        accuracy: `(N,)` in percent.
        noise: Standard deviation of one run in points.
        guide: The divergences.
        lost: The scales: points that a split of mean divergence loses.
    """
    n, losses = len(guide.kept), np.outer(lost, guide.relative)
    seen = np.vstack([guide.kept, kept])
    values = np.hstack([-losses, np.tile(accuracy, (len(losses), 1))])
    scatter = COMMON**2 * common(guide.kept) + OWN**2 * np.eye(n)
    covariance = np.tile(kernel(seen), (len(losses), 1, 1))
    covariance[:, :n, :n] += HEIGHT**2 + losses[:, :, None] * losses[:, None, :] * scatter
    covariance[:, n:, n:] += noise**2 * np.eye(len(kept))
    evidence = _log_density(covariance, values) - _log_density(covariance[:, :n, :n], values[:, :n])
    precision = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    return GuidedProcesses(kernel, seen, precision, values, evidence)


def _log_density(covariance: Array, values: Array) -> Array:
    """Return the log density of values `(S, N)` that Gaussians of mean 0 and covariance `(S, N, N)` draw."""
    fit = (values * np.linalg.solve(covariance, values[..., None])[..., 0]).sum(axis=1)
    density: Array = -0.5 * (fit + np.linalg.slogdet(covariance)[1] + values.shape[1] * np.log(2 * np.pi))
    return density
