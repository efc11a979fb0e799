"""Latency of variants, estimated from few measurements, against clocks with a known law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from prunerecover.cost.alike_sites import MOST, SIZES, TimedVariant, latency_shares

SHARES = (1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125)  # saved shares of a site's MACs


def variants(
    kind: str, sites: int, macs: float, *, alike: str = "", sizes: Sequence[float] = SHARES
) -> list[TimedVariant]:
    """Return variants of alike sites."""
    names = [f"{alike}{kind}.{i}" for i in range(sites)]
    return [TimedVariant(name, alike or kind, str(size), kind, size * macs) for name in names for size in sizes]


class AffineClock:
    """Clock where each site saves a rate times its MACs, by kind; with noise.

    Attributes:
        seen: Sites of each measurement.
    """

    def __init__(self, rates: Mapping[str, float], noise: float = 0.0) -> None:
        self.rates, self.noise = rates, noise
        self.random, self.seen = np.random.default_rng(0), list[list[str]]()

    def truth(self, level: Sequence[TimedVariant]) -> float:
        return sum(next(rate for kind, rate in self.rates.items() if kind in one.site) * one.macs for one in level)

    def __call__(self, level: Sequence[TimedVariant]) -> float:
        self.seen.append([one.site for one in level])
        return self.truth(level) + self.noise * self.random.standard_normal()


def errors(asked: Sequence[TimedVariant], clock: AffineClock, **how: int) -> np.ndarray:
    found = latency_shares(asked, clock, **how)
    return np.array([share - clock.truth([one]) for share, one in zip(found, asked, strict=True)])


@pytest.mark.parametrize(("noise", "error"), [(0.0, 1e-12), (0.01, 0.003)])
def test_shares_are_those_of_a_clock_that_is_linear_in_the_macs_of_each_kind(noise: float, error: float) -> None:
    """Noise is shared by the sites."""
    asked = variants("attention", 12, 0.03) + variants("mlp", 12, 0.05)
    clock = AffineClock({"attention": 1.4, "mlp": 0.7}, noise=noise)
    assert abs(errors(asked, clock)).max() < error


def test_each_size_is_measured_at_all_alike_sites_at_once() -> None:
    clock = AffineClock({"attention": 1.0, "mlp": 1.0})
    latency_shares(variants("attention", 5, 0.03) + variants("mlp", 7, 0.05), clock)
    assert Counter(map(len, clock.seen)) == {5: SIZES, 7: SIZES}
    assert all(len(set(names)) == len(names) for names in clock.seen)


def test_smaller_variants_save_at_least_as_much_whatever_a_clock_says() -> None:
    asked = variants("mlp", 4, 0.04)
    found = latency_shares(asked, AffineClock({"mlp": 1.0}, noise=0.2))
    by_site = np.array(found).reshape(4, len(SHARES))
    assert (np.diff(by_site, axis=1) <= 1e-12).all()
    assert (by_site >= 0).all()


def test_sites_too_small_for_a_clock_save_at_the_rate_of_their_kind() -> None:
    asked = variants("mlp", 10, 0.05) + variants("mlp", 1, 0.01, alike="last.") + variants("norm", 1, 0.01)
    clock = AffineClock({"mlp": 0.5, "norm": 0.5})  # other kinds that are not measured take the rate of all
    np.testing.assert_allclose(errors(asked, clock), 0, atol=1e-12)
    assert [len(names) for names in clock.seen] == [10] * SIZES


@pytest.mark.parametrize(("macs", "measured"), [(0.9, True), (0.01, False)])
def test_a_single_site_is_measured_where_a_clock_can_tell_it(macs: float, measured: bool) -> None:
    asked, clock = variants("mlp", 1, macs), AffineClock({"mlp": 0.5})
    found = latency_shares(asked, clock)
    np.testing.assert_allclose(found, [(0.5 if measured else 1.0) * one.macs for one in asked])
    assert bool(clock.seen) == measured


def test_classes_of_one_site_are_measured_apart() -> None:
    """For example, heads of 48 may be as slow as heads of 64, while fewer heads are faster."""
    fewer = variants("attention", 6, 0.06, alike="heads ", sizes=(0.67, 0.33))
    smaller = variants("attention", 6, 0.06, alike="sizes ", sizes=(0.5, 0.25))
    clock = AffineClock({"heads ": 1.0, "sizes ": 0.1})
    np.testing.assert_allclose(errors([*fewer, *smaller], clock), 0, atol=1e-12)


def test_measurements_have_a_cap() -> None:
    asked = [v for i in range(9) for v in variants("mlp", 3, 0.03, alike=f"stage{i}.")]
    for most in (1, 5, MOST):
        clock = AffineClock({"mlp": 0.6})
        np.testing.assert_allclose(errors(asked, clock, most=most), 0, atol=1e-12)
        assert 0 < len(clock.seen) <= most


def test_sites_as_they_are_save_nothing_and_are_not_measured() -> None:
    asked = [TimedVariant(f"{i}.mlp", "mlp", "dense", "mlp", 0.0) for i in range(4)]
    assert latency_shares(asked, AffineClock({})) == [0.0] * 4
    assert latency_shares([], AffineClock({})) == []


def test_variants_that_cost_more_and_no_measurement_are_refused() -> None:
    more = TimedVariant("0.mlp", "mlp", "affine", "mlp", -0.01)
    with pytest.raises(ValueError, match="'affine' of 0.mlp saves -1.00%. Leave out variants"):
        latency_shares([more], AffineClock({}))
    with pytest.raises(ValueError, match="at least one measurement, but got 0. 16 are usual"):
        latency_shares([], AffineClock({}), most=0)
