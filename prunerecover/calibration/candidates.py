"""Candidates for the place of one unit, fitted on calibration data in one streaming pass.

Fits aim at the dense model's hidden state after the branch, so that each also corrects what earlier replacements
changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from prunerecover.calibration.regression import AffineRegression, ChannelRegression
from prunerecover.families.layout import Block, Branch, FeedForward
from prunerecover.model.linears import linear_shape, matrix_and_bias
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Edit, Fold, Remove, Replace
from prunerecover.plan.units import Unit

RIDGES = (0.3, 3.0)  # relative to the mean variance of the regressors; chosen on held-out samples
Recorded = Mapping[str, Tensor]


@dataclass(frozen=True)
class Form:
    """What stays in a unit's place, whatever its values.

    Attributes:
        leaves: As of the edit; "map" for one that is folded elsewhere.
        ridge: With which it is fitted; None: any.
    """

    leaves: str
    ridge: float | None = None

    def fits(self, candidate: Candidate) -> bool:
        """Whether a candidate is of this form."""
        return self.leaves == candidate.leaves and self.ridge in (None, candidate.ridge)


@dataclass(frozen=True)
class Candidate:
    """One way to replace a unit: the edit without its tensor keys, and the fitted values by parameter name.

    Attributes:
        edit: Of the unit.
        values: Of what the unit leaves, or of the map that is folded.
        fold: Of the last block of a run: the edit that folds a map for all of the run, without its tensor keys.
        ridge: With which the values were fitted; None: without.
    """

    edit: Edit
    values: dict[str, Tensor] = field(default_factory=dict)
    fold: Fold | None = None
    ridge: float | None = None

    @property
    def leaves(self) -> str:
        """What stays in the unit's place; "map" for one that is folded elsewhere."""
        if self.fold is not None:
            return "map"
        assert isinstance(self.edit, Remove | Replace)
        return self.edit.leaves


@dataclass(frozen=True)
class Choice:
    """The stand-in chosen for a unit, and the output divergence on held-out samples with it in place."""

    unit: Unit
    candidate: Candidate
    divergence: float


class Fit(Protocol):
    """Sums over calibration tokens from which the candidates of one unit are solved.

    Attributes:
        branch: The branch that the unit is or is part of.
    """

    branch: Branch

    @property
    def paths(self) -> tuple[str, ...]:
        """Modules whose inputs and outputs `add` reads, as `<path>.in` and `<path>.out`."""

    def add(self, seen: Recorded, target: Tensor, weight: Tensor) -> None:
        """Add one batch.

        Args:
            seen: Inputs and outputs of the modules in `paths` in the pruned model, `(N, ..., width)`.
            target: The dense model's hidden state after the branch, `(N, ..., C)`.
            weight: Token weights of the block, `(N, ...)`.
        """

    def candidates(self) -> list[Candidate]:
        """Solve."""


def fit_of(model: nn.Module, block: Block, unit: Unit) -> Fit:
    """Start the fit of a unit.

    Args:
        model: Unwrapped.
        block: That holds the unit.
        unit: An attention, mlp or activation.
    """
    if unit.kind == "activation":
        assert block.feed_forward is not None
        assert block.mlp is not None
        return ActivationFit(model, block.feed_forward, block.mlp)
    branch = block.attention if unit.kind == "attention" else block.mlp
    assert branch is not None
    return BranchFit(branch)


class ActivationFit:
    """Slope and bias per channel, and affine maps for the whole feed-forward at each ridge strength."""

    def __init__(self, model: nn.Module, forward: FeedForward, branch: Branch) -> None:
        self.model, self.forward, self.branch = model, forward, branch
        self._channels, self._affine = ChannelRegression(), AffineRegression()

    @property
    def paths(self) -> tuple[str, ...]:
        """The residual stream, and what enters and leaves the activation."""
        return *self.branch.before, self.forward.first, self.forward.activation

    def add(self, seen: Recorded, target: Tensor, weight: Tensor) -> None:
        """Add one batch.

        Args:
            seen: What entered and left the modules in `paths`, `(N, ..., C)`; of the activation `(N, ..., hidden)`.
            target: The dense model's hidden state after the branch, `(N, ..., C)`.
            weight: Token weights, `(N, ...)`.
        """
        weight = weight.flatten()
        act, wanted = self.forward.activation, _wanted(self.branch, seen, target)
        self._channels.add(_rows(seen[f"{act}.in"]), _rows(seen[f"{act}.out"]), weight)
        self._affine.add(_rows(seen[f"{self.forward.first}.in"]), self._unscaled(_rows(wanted)), weight)

    def candidates(self) -> list[Candidate]:
        """Slope and bias first, then the affine maps, shrunk towards the feed-forward with the slopes in place."""
        slope, bias = self._channels.solve()
        found = [Candidate(self._edit("slope_bias"), {"slope": slope, "bias": bias})]
        prior = self._linearised(slope)
        for ridge in RIDGES:
            weight, offset = self._affine.solve(ridge, prior)
            found.append(Candidate(self._edit("affine"), {"weight": weight, "bias": offset}, ridge=ridge))
        return found

    def _edit(self, leaves: Literal["slope_bias", "affine"]) -> Replace:
        return Replace(unit=self.forward.activation, kind="activation", leaves=leaves)

    def _unscaled(self, y: Tensor) -> Tensor:
        """Divide by LayerScale, which stays after the feed-forward: the fit is of what comes before it."""
        if self.forward.scale is None:
            return y
        gamma = get_module(self.model, self.forward.scale).get_parameter("gamma")
        usable = gamma.abs() > 1e-6
        return torch.where(usable, y / torch.where(usable, gamma, torch.ones_like(gamma)), torch.zeros_like(y))

    def _linearised(self, slope: Tensor) -> Tensor:
        inner, _ = matrix_and_bias(get_module(self.model, self.forward.first))
        outer, _ = matrix_and_bias(get_module(self.model, self.forward.second))
        return (outer * slope.to(outer)) @ inner


class BranchFit:
    """Zero, the mean output, and affine maps of the branch's input."""

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self._affine = AffineRegression()

    @property
    def paths(self) -> tuple[str, ...]:
        """The residual stream, and what enters the branch."""
        return *self.branch.before, self.branch.path

    def add(self, seen: Recorded, target: Tensor, weight: Tensor) -> None:
        """Add one batch.

        Args:
            seen: What entered the modules in `paths`, `(N, ..., C)`.
            target: The dense model's hidden state after the branch, `(N, ..., C)`.
            weight: Token weights, `(N, ...)`.

        Raises:
            ValueError: If channels are not last.
        """
        if target.shape[-1] != self.branch.dim:
            raise ValueError(
                f"Expected the {self.branch.dim} channels of '{self.branch.path}' in the last dimension, to fit what "
                f"is left in its place, but its output has shape {tuple(target.shape)}. Use replace='zero'."
            )
        wanted = _wanted(self.branch, seen, target)
        self._affine.add(_rows(seen[f"{self.branch.path}.in"]), _rows(wanted), weight.flatten())

    def candidates(self) -> list[Candidate]:
        """Zero first: what ties with it loses."""
        unit, kind = self.branch.path, self.branch.kind
        prior = torch.zeros(self.branch.dim, self.branch.dim)
        found = [Candidate(Remove(unit=unit, kind=kind))]
        _, mean = self._affine.solve(float("inf"), prior)
        found.append(Candidate(Replace(unit=unit, kind=kind, leaves="constant"), {"bias": mean}))
        for ridge in RIDGES:
            weight, offset = self._affine.solve(ridge, prior)
            edit = Replace(unit=unit, kind=kind, leaves="affine")
            found.append(Candidate(edit, {"weight": weight, "bias": offset}, ridge=ridge))
        return found


def named_candidate(model: nn.Module, unit: Unit, replace: str, forward: FeedForward | None) -> Candidate:
    """The stand-in that a user asked for by name.

    Args:
        model: Unwrapped.
        unit: What it stands in for. Blocks leave nothing under either name.
        replace: "zero" or "identity". A zero activation lets the feed-forward add its output bias only.
        forward: The feed-forward of the unit's block, whose hidden width a zero activation needs; else it may be None.
    """
    name, kind = unit.name, unit.kind
    if kind == "activation" and replace == "zero":
        assert forward is not None
        hidden = linear_shape(get_module(model, forward.first))[1]
        zeros = {"slope": torch.zeros(hidden), "bias": torch.zeros(hidden)}
        return Candidate(Replace(unit=name, kind="activation", leaves="slope_bias"), zeros)
    if replace == "identity" and kind != "block":
        return Candidate(Replace(unit=name, kind=kind, leaves="identity"))  # type: ignore[arg-type]
    return Candidate(Remove(unit=name, kind=kind))  # type: ignore[arg-type]


def _wanted(branch: Branch, seen: Recorded, target: Tensor) -> Tensor:
    """Return the branch's output that leads from the pruned model's hidden state before it to the target."""
    return (target - branch.state_before(seen)) / branch.scale


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])
