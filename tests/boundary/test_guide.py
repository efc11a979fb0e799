"""Divergences before training guide the map of accuracies where informative, and change nothing elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from cases.boundary import QUICK, Told, attention_hurts, quick_planner, split_of
from cases.maps import LINE, arrays, noisy
from cases.models.tiny import tiny_timm
from scipy.stats import multivariate_normal
from sklearn.gaussian_process.kernels import DotProduct, Matern

from prunerecover import MapPoint, fit_map
from prunerecover.boundary.designs import Split, feasible_splits, spread
from prunerecover.boundary.feasible import TYPES
from prunerecover.boundary.guide import COMMON, HEIGHT, OWN, fit_guided, guide_of
from prunerecover.boundary.map_points import kept_fractions
from prunerecover.boundary.next_split import first_splits, next_split
from prunerecover.boundary.plan_boundary import plan_boundary
from prunerecover.boundary.search import BoundarySearch, Trial
from prunerecover.planning.plan_depth import plan_depth

KEPT = kept_fractions(LINE, (12, 12))
LOSSES = {split: 6 + 0.4 * abs(split[0] - 5) ** 1.5 for split in LINE}  # least with five attentions gone


def runs(losses: Mapping[Split, float], splits: Sequence[Split]) -> tuple[MapPoint, ...]:
    return tuple(MapPoint(*split, 80 - losses[split]) for split in splits)


# Equivalence.


@pytest.mark.parametrize(
    "divergences",
    [
        {},
        {LINE[2]: 0.3},
        dict.fromkeys(LINE, 0.7),
        {split: float(split[0]) for split in LINE},  # one is 0
        {split: -1e-8 * split[1] for split in LINE},  # rounding
    ],
)
def test_divergences_that_say_nothing_leave_the_map_as_it_is(divergences: dict[Split, float]) -> None:
    points = noisy(spread(LINE, 4))
    alone, guided = fit_map(points, 12), fit_map(points, 12, divergences=divergences)
    assert guided.best(n_remove=8) == alone.best(n_remove=8)
    assert guided.surface.predict(KEPT) == pytest.approx(alone.surface.predict(KEPT))
    assert next_split(points, LINE, 12, divergences=divergences) == next_split(points, LINE, 12)


def test_other_surfaces_read_no_divergences() -> None:
    points = noisy(spread(LINE, 4))
    first, second = (fit_map(points, 12, surface="parabola", divergences=each) for each in (None, LOSSES))
    assert first.coefficients == second.coefficients


# An independent oracle: the joint Gaussian, written out entry by entry.


def test_guided_processes_are_conditional_gaussians() -> None:
    kernel, common, noise = 9.0 * DotProduct(1.0) + 4.0 * Matern(0.3, nu=2.5), Matern(0.4, nu=2.5), 0.5
    points = noisy(((1, 7), (4, 4)))
    kept, accuracy = arrays(points)
    guide = guide_of(dict(list(LOSSES.items())[:4]), (12, 12))
    assert guide is not None
    found = fit_guided(kernel, common, kept, accuracy, noise, guide, (3.0, 8.0))
    means, covariances = found.posterior(KEPT)
    for i, lost in enumerate((3.0, 8.0)):
        seen = np.vstack([KEPT, guide.kept, kept])  # what is asked, the divergences, the runs
        joint = kernel(seen)
        for p in range(4):
            for q in range(4):
                scatter = COMMON**2 * common(guide.kept[[p]], guide.kept[[q]]).item() + OWN**2 * (p == q)
                joint[9 + p, 9 + q] += HEIGHT**2 + lost**2 * guide.relative[p] * guide.relative[q] * scatter
        for p in (13, 14):
            joint[p, p] += noise**2
        values = np.concatenate([-lost * guide.relative, accuracy])
        gain = np.linalg.lstsq(joint[9:, 9:], joint[9:, :9])[0].T
        assert means[i] == pytest.approx(gain @ values, abs=1e-6)
        assert covariances[i] == pytest.approx(joint[:9, :9] - gain @ joint[9:, :9], abs=1e-6)
        whole = multivariate_normal(cov=joint[9:, 9:]).logpdf(values)
        assert found.log_evidence[i] == pytest.approx(
            whole - multivariate_normal(cov=joint[9:13, 9:13]).logpdf(values[:4])
        )


# Benefits of guidance.


def test_runs_overrule_divergences_that_are_wrong() -> None:
    wrong = {split: LOSSES[8 - split[0], 8 - split[1]] for split in LINE}
    fitted = fit_map(runs(LOSSES, LINE), 12, divergences=wrong)
    assert fitted.best(n_remove=8).split == (5, 3)
    assert fitted.surface.predict(KEPT) == pytest.approx(fit_map(runs(LOSSES, LINE), 12).surface.predict(KEPT), abs=0.3)


def test_the_first_runs_are_spread_over_splits_that_may_be_the_best() -> None:
    steep = {split: 0.1 + 0.03 * abs(split[0] - 6) for split in LINE}
    near = [(attention, 8 - attention) for attention in range(3, 9)]  # up to 0.2
    assert [split for split in LINE if steep[split] <= 2 * steep[6, 2]] == near
    assert first_splits(LINE, (12, 12), steep) == spread(near, 3)
    assert next_split([], LINE, 12, divergences=steep) == near[0]
    assert next_split(runs(LOSSES, near[:1]), LINE, 12, divergences=steep) == spread(near, 3)[1]


# The search asks for them.


def divergence_of(trial: Trial) -> float:
    return list(trial.plan.evidence["divergence"].values())[-1]


@pytest.mark.slow
def test_the_search_finds_the_least_divergence_where_that_is_what_counts() -> None:
    class AsDiverged(Told):
        def __call__(self, trials: Sequence[Trial]) -> list[float]:
            super().__call__(trials)
            return [80 - 10 * divergence_of(trial) for trial in trials]

    model, told = tiny_timm(depth=8), AsDiverged(attention_hurts)
    plan = plan_boundary(model, n_remove=8, runs=4, evaluate=told, **QUICK)
    found = {}
    for attention, activation in feasible_splits(8, n_remove=8):
        remove = {kind: n for kind, n in zip(TYPES, (attention, activation), strict=True) if n}
        alone = plan_depth(model, remove=remove, **QUICK)
        found[attention, activation] = list(alone.evidence["divergence"].values())[-1]
    assert split_of(plan) == min(found, key=found.__getitem__)
    search = BoundarySearch(quick_planner(model), tuple(found), told)
    assert search.divergences == pytest.approx(found)


# Arguments.


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_divergences_are_finite(value: float) -> None:
    with pytest.raises(ValueError, match="Expected finite divergences, but got .* Do outputs of the pruned network"):
        fit_map(noisy(spread(LINE, 4)), 12, divergences={**LOSSES, (1, 7): value})


def test_divergences_are_of_splits_of_the_model() -> None:
    with pytest.raises(ValueError, match=r"within the 12 and 12 units of the model, but got \(13, 0\)"):
        next_split(noisy(spread(LINE, 3)), LINE, 12, divergences={(13, 0): 0.4})
    with pytest.raises(ValueError, match=r"within the 12 and 12 units of the model, but got \(13, 0\)"):
        first_splits(LINE, (12, 12), {(13, 0): 0.4})
    with pytest.raises(ValueError, match="Expected at least one split and two runs, but got 0 splits"):
        first_splits([], (12, 12), LOSSES)
