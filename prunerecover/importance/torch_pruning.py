"""Importances of torch-pruning (Fang et al. 2023, DepGraph, arXiv 2301.12900) for our groups of width.

`plan_width(importance=tp.importance.GroupTaylorImportance())`, or by name: "group_taylor", "group_magnitude" and
"lamp" (arXiv 2010.07611) are the classes of the library with their own defaults. Importances see a copy of the model;
those of the Taylor family find `.grad` of the mean loss over the calibration samples there, in evaluation mode. A unit
of several channels, such as a head, scores the mean over its channels, as in the pruner of torch-pruning.

Scores are the library's, oddities included: `GroupTaylorImportance` of 1.6.1 leaves BatchNorm out, and all classes
leave out depthwise convolutions. By default each group's scores are divided by their mean: the scores rank the units
within a group, and say little about a group beside another.

Not covered: importances that collect data while the user runs batches (Hessian, OBD-C, activations).
`GroupHessianImportance` of 1.6.1 keeps the last sample only: the class looks parameters up by name and keeps them by
identity.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from prunerecover.importance.context import WidthContext
from prunerecover.importance.first_order import MeanGradients
from prunerecover.importance.measuring.dependency_group import dependency_group
from prunerecover.importance.measuring.names import name_of
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.importance.streaming import StreamedImportance
from prunerecover.model.copies import deep_copy
from prunerecover.model.evaluation import evaluating
from prunerecover.model.paths import get_module, parent_path, unwrap
from prunerecover.plan.groups import Group

COLLECTING = ("GroupHessianImportance", "OBDCImportance", "ActivationImportance")  # collect data while batches run


def is_torch_pruning(importance: object) -> bool:
    """Whether an object is an importance of torch-pruning, or of a derived class; imports nothing."""
    library = sys.modules.get("torch_pruning")
    return library is not None and isinstance(importance, library.importance.Importance)


def torch_pruning_importance(importance: Any, gradients: bool | None = None) -> StreamedImportance:
    """Return an importance of torch-pruning as a streamed importance.

    Args:
        importance: Object, `importance(torch_pruning group) -> (channels,)`, or name of a class in
            `torch_pruning.importance`, made with its defaults on first use.
        gradients: Whether the importance reads `.grad`; None: True for the Taylor family alone. Pass True for a custom
            class with gradients.
    """
    return StreamedImportance(partial(_start, importance, gradients))


def _start(importance: Any, gradients: bool | None, context: WidthContext) -> TorchPruningScores:
    from torch_pruning import importance as library

    if isinstance(importance, str):
        importance = getattr(library, importance)()
    if isinstance(importance, tuple(getattr(library, name) for name in COLLECTING)):
        raise ValueError(
            f"Expected an importance that reads weights, and gradients of the mean loss, but torch-pruning's "
            f"{name_of(importance)} collects data of its own while batches run. Use GroupTaylorImportance."
        )
    if gradients is None:
        gradients = isinstance(importance, library.GroupTaylorImportance)
    return TorchPruningScores(importance, gradients, context)


class TorchPruningScores:
    """Scores of an importance of torch-pruning under way.

    Attributes:
        passes: Consumer of the gradients; empty if the importance reads none.
    """

    def __init__(self, importance: Any, gradients: bool, context: WidthContext) -> None:
        context.require_groups(name_of(importance))
        self.importance, self.context, self.model = importance, context, unwrap(context.model)
        self.passes: Sequence[MeanGradients] = ()
        for group in context.groups:
            dependency_group(self.model, group)  # raises for unknown modules before any batch runs
        if gradients:
            context.require_loss(name_of(importance))
            self._named = _parameters(self.model, context.groups)
            self.passes = (MeanGradients(list(self._named.values())),)

    def scores(self) -> Scores:
        """Return the mean importance over each unit's channels."""
        copy = deep_copy(self.model)
        for path, parameter in self._named.items() if self.passes else ():
            copy.get_parameter(path).grad = self.passes[0].mean(parameter)
        with evaluating(copy):
            torch.default_generator.manual_seed(self.context.seed)  # restored with the model, unlike device generators
            return {group.name: self._of(copy, group) for group in self.context.groups}

    def _of(self, copy: nn.Module, group: Group) -> Tensor:
        description, unit_of = dependency_group(copy, group)
        found, name = self.importance(description), name_of(self.importance)
        if not isinstance(found, Tensor) or found.shape != unit_of.shape:
            shape = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else "no scores"
            layers = ", ".join(dict.fromkeys(type(dep.layer).__name__ for dep, _ in description))
            raise ValueError(
                f"Expected torch-pruning's {name} to score {len(unit_of)} channels of '{group.name}', which is made "
                f"of {layers}, but got {shape}. Leave the group out, ignore=['{group.name}'], or choose another "
                "importance."
            )
        if not found.isfinite().all():
            raise ValueError(
                f"Expected finite scores from torch-pruning's {name}, but the scores of '{group.name}' are not. Are "
                "they all zero? The importance divides by their mean, except with normalizer=None. Or leave the group "
                f"out, ignore=['{group.name}'], and check the model's output on the calibration batches for NaN."
            )
        total = torch.zeros(group.size, dtype=torch.float64).index_add_(0, unit_of, found.detach().cpu().double())
        return total * group.size / len(unit_of)


def _parameters(model: nn.Module, groups: Sequence[Group]) -> dict[str, Parameter]:
    """Return the parameters of all modules with a slice of a group, by path."""
    modules = dict.fromkeys(parent_path(part.tensor) for group in groups for part in group.slices)
    return {
        f"{path}.{name}".removeprefix("."): parameter
        for path in modules
        for name, parameter in get_module(model, path).named_parameters(recurse=False)
    }
