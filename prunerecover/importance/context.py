"""Contexts of importances: the model, the units to score, calibration batches and a loss.

An importance is any callable `(context) -> {name: score}`, higher means keep: a number per unit of depth, a tensor
`(size,)` with one number per unit of a group of width. The members of the context that an importance reads decide where
the importance can be used: in depth and in width with the weights of each unit (`sum_weights`); in depth alone with the
network without a unit (`each_without`) or the ends of a unit; in width alone with the taps of the groups (`groups`).

An importance is called in evaluation mode and without gradients (use `torch.enable_grad` where needed), and must leave
the model unchanged: take gradients by `torch.autograd.grad`, or on a copy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from prunerecover.families.describe import describe, is_supported
from prunerecover.families.layout import Branch
from prunerecover.importance.measuring.losses import Loss
from prunerecover.importance.measuring.unit_slices import Scores, check_names, made_parameters, sum_per_unit
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.groups import Group
from prunerecover.plan.units import Unit

ClassLabels = Callable[[Any], Tensor]
Dimension = Literal["depth", "width"]
ValuesOf = Callable[[Parameter], Tensor | None]


@dataclass(frozen=True, kw_only=True)
class Context(ABC):
    """A model and the data to score its units on.

    Attributes:
        model: Network, unwrapped.
        batches: Calibration batches as the user gave them, labels included.
        loss: `loss(model, batch) -> scalar`, a mean over the batch; None without a loss.
        seed: Seed of all random draws.
        dimension: Dimension of the units, "depth" or "width".
    """

    dimension: ClassVar[Dimension]
    model: nn.Module
    batches: Sequence[Any] = ()
    loss: Loss | None = None
    seed: int = 0

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each score by name: `()` for a unit of depth, `(size,)` for a group of width."""

    @property
    @abstractmethod
    def weights(self) -> Sequence[Parameter]:
        """Parameters with entries that belong to a unit."""

    @abstractmethod
    def sum_weights(self, values: ValuesOf) -> Scores:
        """Return, by name, the sum over the weights of each unit.

        Args:
            values: Function from a parameter to a number per entry, `values(parameter) -> Tensor` of the parameter's
                shape; None adds zero.
        """

    def require_loss(self, name: str) -> Loss:
        """Return the loss.

        Args:
            name: Name of the importance, for the message.

        Raises:
            ValueError: If the context has no loss.
        """
        if self.loss is None:
            raise ValueError(
                f"Expected argument loss=f(model, batch) for importance='{name}', but got none. The default in depth, "
                "'output_divergence', and 'magnitude' need no labels."
            )
        return self.loss

    def require_groups(self, name: str) -> Sequence[Group]:
        """Return the groups of width, for an importance of activations or modules of groups.

        Args:
            name: Name of the importance, for the message.

        Raises:
            ValueError: If units of depth are scored.
        """
        raise ValueError(
            f"Expected groups of width for importance='{name}', but got units of depth. Use 'taylor', 'r_score' or "
            "'magnitude', or plan in width."
        )

    def require_units(self, name: str) -> DepthContext:
        """Return the context of units of depth, for an importance of the network without a unit.

        Args:
            name: Name of the importance, for the message.

        Raises:
            ValueError: If groups of width are scored.
        """
        raise ValueError(
            f"Expected units of depth for importance='{name}', but got groups of width. Use 'gate_taylor', or plan in "
            "depth."
        )

    def cannot_go(self, name: str) -> bool:
        """Whether a unit must stay in the network; an infinite score is valid for such a unit alone."""
        return False


@dataclass(frozen=True, kw_only=True)
class DepthContext(Context):
    """Units of depth to score: blocks, attentions, MLPs, layers and activations.

    Attributes:
        units: Units to score, in order of depth.
        replace: Replacement of removed units; see `plan_depth`.
    """

    dimension: ClassVar[Dimension] = "depth"
    units: Sequence[Unit]
    replace: str = "calibrated"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each score: a single number per unit."""
        return {unit.name: () for unit in self.units}

    @property
    def weights(self) -> Sequence[Parameter]:
        """Parameters of the units; for an activation, which has none, those of the linears around the activation."""
        return list(dict.fromkeys(p for unit in self.units for p in unit_parameters(self.model, unit)))

    def sum_weights(self, values: ValuesOf) -> Scores:
        """Return the sum over the parameters of each unit."""
        sums = {parameter: sum_of(values(parameter)) for parameter in self.weights}
        return self._by_name(lambda unit: math.fsum(sums[p] for p in unit_parameters(self.model, unit)))

    def require_units(self, name: str) -> DepthContext:
        """Return the context itself."""
        return self

    def branch(self, unit: Unit, name: str) -> Branch | None:
        """Return the residual branch of a unit; None for a block.

        Args:
            unit: Block, attention or MLP.
            name: Name of the importance, for the message.

        Raises:
            ValueError: If no family describes the ends of branches in the network.
        """
        if unit.kind == "block":
            return None
        if not is_supported(unwrap(self.model)):
            raise ValueError(
                f"Expected whole blocks for importance='{name}' in {type(unwrap(self.model)).__name__}, which is of no "
                f"supported family, but got '{unit.name}' ({unit.kind}), whose ends only a family tells. Use "
                "'output_divergence' or 'block_output_angle'."
            )
        return describe(unwrap(self.model)).branch(unit.name)

    def divergences(self) -> Scores:
        """Return the divergence of the output without each unit from the dense network's.

        Raises:
            ValueError: If the context was not made by planning, which judges networks.
        """
        raise _not_planned()

    def each_without(self, score: Callable[[nn.Module, Unit], float]) -> Scores:
        """Return, by unit, the score of the network with the unit's replacement in place.

        Args:
            score: Function of the network without the unit, in evaluation mode, and of the unit.

        Raises:
            ValueError: If the context was not made by planning, which makes networks without units.
        """
        raise _not_planned()

    def _by_name(self, score: Callable[[Unit], float]) -> Scores:
        return {unit.name: torch.tensor(score(unit), dtype=torch.float64) for unit in self.units}


@dataclass(frozen=True, kw_only=True)
class WidthContext(Context):
    """Groups of width with units to score.

    Attributes:
        groups: Groups of different names.
        labels: Classes of a batch, `labels(batch) -> (N,)` integers, for experts also `(N, T)`; None: the labels in the
            batches.
        directions: Projections per tap for the U-Score; None: 128 for maps, 64 for tokens.
        per_class: Number of samples of each class for the U-Score, the first in order; None: all samples.
    """

    dimension: ClassVar[Dimension] = "width"
    groups: Sequence[Group]
    labels: ClassLabels | None = None
    directions: int | None = None
    per_class: int | None = None

    def __post_init__(self) -> None:
        """Check the names."""
        check_names(self.groups)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each score: a number per unit of the group."""
        return {group.name: (group.size,) for group in self.groups}

    @property
    def weights(self) -> Sequence[Parameter]:
        """Parameters with outputs in a group, which make the units; parameters of the readers are left out."""
        return list(self._made.values())

    def sum_weights(self, values: ValuesOf) -> Scores:
        """Return, by group, the sum over the weights that make each unit."""
        found = {name: values(parameter) for name, parameter in self._made.items()}
        by_name = {name: value for name, value in found.items() if value is not None}
        return {group.name: sum_per_unit(group, by_name) for group in self.groups}

    def require_groups(self, name: str) -> Sequence[Group]:
        """Return the groups."""
        return self.groups

    @cached_property
    def _made(self) -> Mapping[str, Parameter]:
        return made_parameters(unwrap(self.model), self.groups)


Importance = Callable[[Any], Mapping[str, Any]]


def _not_planned() -> ValueError:
    return ValueError(
        "Expected a context made by planning, which judges the network without each unit, but got units and batches "
        "alone. Use plan_depth or sensitivity with this importance."
    )


def unit_parameters(model: nn.Module, unit: Unit) -> list[Parameter]:
    """Return a unit's parameters; for an activation, which has none, those of the linears around the activation."""
    model = unwrap(model)
    return list(dict.fromkeys(p for path in unit.targets for p in get_module(model, path).parameters()))


def sum_of(values: Tensor | None) -> float:
    """Return the sum of all entries; 0 for None."""
    return 0.0 if values is None else float(values.sum(dtype=torch.float64))
