"""Candidates for the replacement of a unit, fitted on calibration data in a streaming pass.

Each fit aims at the dense model's hidden state after the branch, and so corrects for earlier replacements, too.
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
    """Form of a replacement, without values.

    Attributes:
        leaves: Name of the form, as in the edit; "map" for a map folded into another linear.
        ridge: Ridge strength of the fit; None: any.
    """

    leaves: str
    ridge: float | None = None

    def fits(self, candidate: Candidate) -> bool:
        """Whether a candidate has the form."""
        return self.leaves == candidate.leaves and self.ridge in (None, candidate.ridge)


@dataclass(frozen=True)
class Candidate:
    """Replacement of a unit: the edit without tensor keys, and the fitted values by parameter name.

    Attributes:
        edit: Edit of the unit.
        values: Values of the replacement, or of the folded map.
        fold: Edit that folds a map for a whole run, without tensor keys; only on the last block of a run.
        ridge: Ridge strength of the fit; None: no fit.
    """

    edit: Edit
    values: dict[str, Tensor] = field(default_factory=dict)
    fold: Fold | None = None
    ridge: float | None = None

    @property
    def leaves(self) -> str:
        """Form of the replacement; "map" for a map folded into another linear."""
        if self.fold is not None:
            return "map"
        assert isinstance(self.edit, Remove | Replace)
        return self.edit.leaves


@dataclass(frozen=True)
class Choice:
    """Replacement chosen for a unit, and the output divergence on held-out samples."""

    unit: Unit
    candidate: Candidate
    divergence: float


class Fit(Protocol):
    """Sums over calibration tokens, solved for the candidates of a unit.

    Attributes:
        branch: Branch with the unit.
    """

    branch: Branch

    @property
    def paths(self) -> tuple[str, ...]:
        """Modules whose inputs and outputs `add` reads, as `<path>.in` and `<path>.out`."""

    def add(self, seen: Recorded, target: Tensor, weight: Tensor) -> None:
        """Add a batch.

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
        model: Model, unwrapped.
        block: Block with the unit.
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
        """The residual stream, and the activation's input and output."""
        return *self.branch.before, self.forward.first, self.forward.activation

    def add(self, seen: Recorded, target: Tensor, weight: Tensor) -> None:
        """Add a batch.

        Args:
            seen: Inputs and outputs of the modules in `paths`, `(N, ..., C)`; of the activation `(N, ..., hidden)`.
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
        """Divide by LayerScale, the step after the replacement."""
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
        """The residual stream, and the branch's input."""
        return *self.branch.before, self.branch.path

    def add(self, seen: Recorded, target: Tensor, weight: Tensor) -> None:
        """Add a batch.

        Args:
            seen: Inputs and outputs of the modules in `paths`, `(N, ..., C)`.
            target: The dense model's hidden state after the branch, `(N, ..., C)`.
            weight: Token weights, `(N, ...)`.

        Raises:
            ValueError: If channels are not last.
        """
        if target.shape[-1] != self.branch.dim:
            raise ValueError(
                f"Expected the {self.branch.dim} channels of '{self.branch.path}' in the last dimension, to fit a "
                f"replacement, but its output has shape {tuple(target.shape)}. Use replace='zero'."
            )
        wanted = _wanted(self.branch, seen, target)
        self._affine.add(_rows(seen[f"{self.branch.path}.in"]), _rows(wanted), weight.flatten())

    def candidates(self) -> list[Candidate]:
        """Return all candidates; zero comes first, and wins ties."""
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
    """Return the replacement of a given name.

    Args:
        model: Model, unwrapped.
        unit: Unit to replace. Removed blocks have no replacement under either name.
        replace: "zero" or "identity". With a zero activation, the feed-forward adds its output bias only.
        forward: Feed-forward of the unit's block, with the hidden width of a zero activation; otherwise it may be None.
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
    """Return the branch output between the pruned model's hidden state before the branch and the target."""
    return (target - branch.state_before(seen)) / branch.scale


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])
