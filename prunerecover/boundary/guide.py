"""Guide: output divergences before any training, as a rough copy, of unknown scale, of the accuracies afterwards.

The loss of accuracy of a split is assumed roughly proportional to the divergence of the planned network, which needs no
run. Divergences are observations of the surface: from a common, unknown height, with a scatter of about a tenth of the
loss, partly shared with neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prunerecover.boundary.designs import Split
from prunerecover.boundary.map_points import check_inside, kept_fractions
from prunerecover.boundary.surfaces import Array

HEIGHT = 40.0  # points: prior sd of the accuracy at divergence 0
COMMON, OWN = 0.06, 0.08  # scatter as a share of the loss: shared with neighbours, and independent
ROUNDING = 1e-6  # rounding of a divergence in single precision, which may make it negative
Kernel = Callable[..., Array]


@dataclass(frozen=True, eq=False)
class Guide:
    """Divergences of splits.

    Args:
        kept: Kept fractions of attentions and activations, `(M, 2)`.
        relative: Divergences as multiples of their geometric mean, `(M,)`.
    """

    kept: Array
    relative: Array


def guide_of(divergences: Mapping[Split, float], layers: tuple[int, int]) -> Guide | None:
    """Return divergences as a guide; None without information: a divergence is 0, or all are equal, up to rounding.

    Raises:
        ValueError: If a divergence is NaN or infinite, or a split does not fit the model.
    """
    check_inside(divergences, layers)
    values = np.array(list(divergences.values()), dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError(
            f"Expected finite divergences, but got {dict(divergences)}. Do outputs of the pruned network overflow? "
            "Plan in single precision, or with another replacement of removed units."
        )
    if not len(values) or values.min() <= ROUNDING or np.ptp(values) <= ROUNDING:
        return None
    return Guide(kept_fractions(divergences, layers), values / np.exp(np.log(values).mean()))


@dataclass(frozen=True, eq=False)
class Processes:
    """Gaussian processes conditioned on the same observations, S of them.

    Args:
        kernel: Kernel of the surface.
        seen: Kept fractions of the observations, `(N, 2)`.
        precision: Inverse covariance of all observations, `(S, N, N)`.
        values: Observations in points, `(S, N)`.
        log_evidence: Log density of the runs, given the divergences if there are any, `(S,)`.
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


def fit_plain(kernel: Kernel, kept: Array, accuracy: Array, noise: float) -> Processes:
    """Condition a process on runs alone; arguments as of `fit_guided`."""
    covariance, values = (kernel(kept) + noise**2 * np.eye(len(kept)))[None], accuracy[None]
    precision = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    return Processes(kernel, kept, precision, values, _log_density(covariance, values))


def fit_guided(
    kernel: Kernel, common: Kernel, kept: Array, accuracy: Array, noise: float, guide: Guide, lost: Sequence[float]
) -> Processes:
    """Condition processes on divergences and runs, one for each scale of the divergences.

    Args:
        kernel: Kernel of the surface.
        common: Correlation of the scatter of splits.
        kept: Kept fractions of attentions and activations in the runs, `(N, 2)`.
        accuracy: Accuracies in percent, `(N,)`.
        noise: Standard deviation of a run in points.
        guide: Divergences of splits.
        lost: Scales: points lost at the mean divergence.
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
    return Processes(kernel, seen, precision, values, evidence)


def _log_density(covariance: Array, values: Array) -> Array:
    """Return the log density of values `(S, N)` under Gaussians of mean 0 and covariance `(S, N, N)`."""
    fit = (values * np.linalg.solve(covariance, values[..., None])[..., 0]).sum(axis=1)
    density: Array = -0.5 * (fit + np.linalg.slogdet(covariance)[1] + values.shape[1] * np.log(2 * np.pi))
    return density
