"""Choices of variants in a library, fitted in order, and nearby choices compared without new fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy.stats import sem

from prunerecover.display.progress import progress
from prunerecover.library.edits import Chosen as Fitted
from prunerecover.library.library import Library
from prunerecover.library.scoring import Scorer
from prunerecover.library.walk import Moments
from prunerecover.solvers.program import Chosen

APART = 0.25  # of a divergence: the difference from the mean over groups of samples up to which they represent it


@dataclass(frozen=True, eq=False)
class State:
    """Choice, fitted in order when needed.

    Attributes:
        library: Library of the variants.
        names: Names of variants, by site.
    """

    library: Library
    names: Mapping[str, str]

    @cached_property
    def _walk(self) -> tuple[Fitted, Moments]:
        return self._walked(together=False)

    def _walked(self, *, together: bool) -> tuple[Fitted, Moments]:
        return self.library.walks.walk(self.library.chosen(self.names), together=together)

    @property
    def chosen(self) -> Fitted:
        """Variants with their fits."""
        return self._walk[0]

    @property
    def moments(self) -> Moments:
        """Moments of every station, behind the choice of the stations before."""
        return self._walk[1]

    @cached_property
    def divergence(self) -> float:
        """Divergence of the output on all held-out samples; all ranks fit together, and continue with the fit."""

        def judge(_: int) -> float:
            if "_walk" not in vars(self):
                vars(self)["_walk"] = self._walked(together=True)
            return self.library.scorers.divergence(self.chosen)

        return self.library.store.results("choice", [self.said], judge, everywhere=True)[0]

    @property
    def said(self) -> tuple[str, ...]:
        """Sites and names."""
        return tuple(part for pair in self.names.items() for part in pair)


class Nearby:
    """Judge of choices near a base choice on a part of the held-out samples, without new fits behind the changes.

    Args:
        base: Base choice.
        turn: Number of the round; each scores on another part.
    """

    def __init__(self, base: State, turn: int = 0) -> None:
        self.base, self.turn = base, turn

    @cached_property
    def _scorer(self) -> Scorer:
        """Scorer with the outputs of the base choice."""
        return self.base.library.scorers.near(self.base.chosen, self.turn)

    @cached_property
    def _of_base(self) -> tuple[float, NDArray[np.float64]]:
        return self._scorer.with_groups(self.base.chosen)

    def increases(self, asked: Sequence[Mapping[str, str]]) -> list[float]:
        """Return the increases of the divergence with other variants at some sites: means, plus a standard error each.

        The best of a hundred changes owes its rank to the few samples in part. With a standard error more, changes
        stay out that these samples do not tell from noise.

        Args:
            asked: Changes of names of variants, by site.
        """
        names = [(*self.base.said, str(self.turn), *chain.from_iterable(changes.items())) for changes in asked]
        with progress("scoring variants again", len(asked)) as advance:
            return self.base.library.store.results("increase", names, lambda n: self._increase(asked[n]), advance)

    def _increase(self, changes: Mapping[str, str]) -> float:
        library, chosen = self.base.library, self.base.chosen
        for site, name in changes.items():
            chosen = library.changed(chosen, site, name, self.base.moments)
        found = self._scorer.with_groups(chosen)
        more = found[0] - self._of_base[0]
        return more + _noise(*self._of_base, *found) if math.isfinite(more) else math.inf

    def best(self, choices: Sequence[Chosen]) -> Chosen:
        """Return the choice of least increase, with its standard error, without new fits."""
        changes = [{site: name for site, name in one.items() if name != self.base.names[site]} for one in choices]
        found = self.increases(changes) if len(choices) > 1 else [0.0]
        return choices[min(range(len(choices)), key=found.__getitem__)]


def _noise(before: float, groups_before: NDArray[np.float64], after: float, groups: NDArray[np.float64]) -> float:
    """Return the standard error of a difference of divergences; 0 where groups of samples do not represent the whole.

    Divergences of few samples may be meaningless: correlations, or ratios to a dense output of zero.
    """
    means = ((before, groups_before), (after, groups))
    if len(groups) < 2 or len(groups) != len(groups_before):
        return 0.0
    if not all(abs(of_groups.mean() - whole) <= APART * abs(whole) for whole, of_groups in means):
        return 0.0
    return float(sem(groups - groups_before))
