"""Executors, one for each class of edit: called by `apply_edits`, which takes back failed edits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import singledispatch

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn import Parameter

from prunerecover.families.describe import describe, describe_stacks
from prunerecover.families.layout import Branch
from prunerecover.model.hooks import carry_hooks
from prunerecover.model.linears import check_plain, linear_shape, matrix_and_vector, through_last_matrix, without_affine
from prunerecover.model.narrow.when_used import when_used
from prunerecover.model.paths import get_module, parent_path
from prunerecover.model.replacements import (
    Affine,
    ChannelMap,
    Constant,
    Nothing,
    PassThrough,
    SlopeBias,
    carry_attributes,
    replacement_for,
)
from prunerecover.plan import edits
from prunerecover.plan.units import number_of_block
from prunerecover.surgery.compensation import refitted_values, stand_in_values
from prunerecover.surgery.folding import folded_map, merged_linear
from prunerecover.surgery.journal import Journal
from prunerecover.surgery.module_sizes import settings_without_fusion
from prunerecover.surgery.narrowing import Cuts, free_heads, narrow, places_of


@dataclass
class EditContext:
    """A model under surgery.

    Attributes:
        model: Network without wrappers.
        tensors: Fitted values by key, or None when only the structure is made.
        to_read: Whether the network is only read: large tensors are cut when used, and refitted values are shared.
        journal: Changes so far.
        origins: Parameter whose optimizer group a new parameter joins, by the new one, and the cuts of the old one that
            made the new; None: the new one takes no state over.
    """

    model: nn.Module
    tensors: Mapping[str, Tensor] | None
    to_read: bool = False
    journal: Journal = field(default_factory=Journal)
    origins: dict[Parameter, tuple[Parameter, Cuts | None]] = field(default_factory=dict)

    def like_of(self, parameter: Parameter) -> Parameter:
        """Follow `origins` back to a parameter from before the surgery."""
        while parameter in self.origins:
            parameter, _ = self.origins[parameter]
        return parameter

    def origin_of(self, parameter: Parameter) -> tuple[Parameter, Cuts]:
        """Follow cuts back to an uncut parameter."""
        cuts: Cuts = ()
        while (found := self.origins.get(parameter)) is not None and found[1] is not None:
            parameter, cuts = found[0], (*found[1], *cuts)
        return parameter, cuts

    def register(self, new: nn.Module, likes: Mapping[str, Parameter], values: Mapping[str, Tensor]) -> None:
        """Give new parameters values, and the device, dtype and trainability of the old ones.

        Args:
            new: Module outside the model that holds its parameters itself, not in submodules.
            likes: Old parameter that each new one stands for, by name in `new`.
            values: Values by the same names, in the parameters' shapes; parameters without a value keep the initial
                value.
        """
        for name, initial in list(new.named_parameters()):
            like = likes[name]
            value = values.get(name, initial).detach().to(like.device, like.dtype, copy=True)
            parameter = Parameter(value, requires_grad=like.requires_grad)
            new.register_parameter(name, parameter)
            self.origins[parameter] = like, None

    def set_values(self, path: str, values: Mapping[str, Tensor]) -> None:
        """Set values of a module's parameters, in new parameters with the optimizer state of the old."""
        for name, value in values.items():
            old = get_module(self.model, path).get_parameter(name)
            new = Parameter(self._value(value, old), requires_grad=old.requires_grad)
            self.journal.replace(self.model, places_of(self.model, [id(old)])[id(old)], new)
            self.origins[new] = old, ()

    def _value(self, value: Tensor, old: Parameter) -> Tensor:
        """Return a value in the form of an old parameter."""

        def copied() -> Tensor:
            return torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=old.device).copy_(value)

        if not self.to_read:
            return copied()
        same = (value.dtype, value.device, value.stride()) == (old.dtype, old.device, old.stride())
        return value.detach() if same else when_used(copied, old.shape, old)

    def replace_module(self, path: str, new: nn.Module) -> None:
        """Put a module at a path."""
        self.journal.replace_module(self.model, path, new)

    def replace_by_identity(self, paths: Iterable[str]) -> None:
        """Turn modules without remaining work into identities."""
        for path in (path for path in paths if not isinstance(get_module(self.model, path), nn.Identity)):
            self.replace_module(path, nn.Identity())


@singledispatch
def execute(edit: BaseModel, context: EditContext) -> None:
    """Apply an edit; `execute.register` adds the executor of another class of edit.

    An executor changes the model only through `context.journal`, for the undo of a failed edit.

    Raises:
        ValueError: If the edit names a part that the model lacks.
        TypeError: If the class of the edit has no executor.
    """
    raise TypeError(f"Expected an edit with an executor, but got {type(edit).__name__}. Register one with execute.")


@execute.register
def _(edit: edits.Config, context: EditContext) -> None:
    context.journal.set_config(context.model, edit.set)


@execute.register
def _(edit: edits.Remove, context: EditContext) -> None:
    if edit.kind == "block":
        _remove_block(context, edit.unit)
        return
    branch = _branch(context.model, edit.unit, edit.kind)
    context.replace_module(branch.path, Nothing(branch.returns))
    context.replace_by_identity(branch.followers)


@execute.register
def _(edit: edits.Replace, context: EditContext) -> None:
    if edit.kind == "activation":
        _replace_activation(context, edit)
    else:
        _replace_branch(context, edit)


@execute.register
def _(edit: edits.Narrow, context: EditContext) -> None:
    taken_over = {} if context.tensors is None else {k.partition(".")[2]: context.tensors[k] for k in edit.tensors}
    context.origins |= narrow(context.model, edit, context.journal, taken_over, to_read=context.to_read)


@execute.register
def _(edit: edits.Fold, context: EditContext) -> None:
    context.set_values(edit.into, folded_map(context.model, edit, context.tensors))


@execute.register
def _(edit: edits.Refit, context: EditContext) -> None:
    context.set_values(edit.unit, refitted_values(get_module(context.model, edit.unit), edit, context.tensors))


@execute.register
def _(edit: edits.Rewrite, context: EditContext) -> None:
    shortcut = get_module(context.model, edit.unit)
    held = [name for name, _ in (*shortcut.named_parameters(), *shortcut.named_buffers())]
    if held:
        raise ValueError(
            f"Expected '{edit.unit}' to be a shortcut without parameters, but this {type(shortcut).__name__} holds "
            f"{', '.join(held[:3])}. Was the plan applied before, or made for another model?"
        )
    widest = max((p.shape[0] for p in context.model.parameters() if p.ndim), default=0)
    if edit.out_channels > widest:
        raise ValueError(
            f"Expected '{edit.unit}' to have at most the {widest} channels of this model's layers, but the plan says "
            f"{edit.out_channels}. Was it made for another model, or edited?"
        )
    like = next((p for p in context.model.parameters() if p.is_floating_point()), torch.empty(0))
    new = ChannelMap(edit.in_channels, edit.out_channels, edit.stride, edit.first, like.device, like.dtype)
    context.replace_module(edit.unit, new)


@execute.register
def _(edit: edits.FreeHeads, context: EditContext) -> None:
    free_heads(context.model, edit, context.journal)


@execute.register
def _(edit: edits.Reroute, context: EditContext) -> None:
    context.journal.reroute(context.model, edit.unit, edit.calls)


@execute.register
def _(edit: edits.Bypass | edits.Patch, context: EditContext) -> None:
    if "" in edit.modules:
        raise ValueError("Expected the path of a module inside the network, but got the network itself.")
    before = {path: get_module(context.model, path) for path in edit.modules}
    for (path, old), one in zip(before.items(), edit.modules.values(), strict=True):
        new = replacement_for(one.leaves, one.returns, one.dim, one.window, one.channels)
        if isinstance(edit, edits.Bypass) and any(True for _ in new.parameters()):
            around = get_module(context.model, parent_path(path)), context.model
            context.register(new, _likes(old, *before.values(), *around), stand_in_values(edit, context.tensors))
        carry_attributes(old, new)
        context.replace_module(path, new)
    for path, attribute, value in settings_without_fusion(context.model, edit.modules):
        context.journal.set_attribute(context.model, path, attribute, value)


def _remove_block(context: EditContext, unit: str) -> None:
    stacks = describe_stacks(context.model)
    prefix, number = unit.rpartition(".")[0], number_of_block(unit)
    layout = next((stack for stack in stacks if stack.container == prefix), stacks[0])
    depth = len(layout.blocks)
    if prefix != layout.container or number is None or number >= depth:
        raise ValueError(
            f"Plan removes block '{unit}' but the model has {depth} blocks ({layout.container}.0-{depth - 1}). "
            "Was it made for another depth?"
        )
    if depth == 1:
        raise ValueError(f"Plan removes '{unit}', the last block of '{layout.container}'. Keep at least one.")
    context.journal.remove_block(context.model, layout.container, number)


def _branch(model: nn.Module, unit: str, kind: str) -> Branch:
    layout = describe(model)
    branch = layout.branch(unit)
    if branch is None or branch.kind != kind:
        raise ValueError(
            f"Expected '{unit}' to be a present {kind} of this {layout.family} with {len(layout.blocks)} blocks, but "
            "there is none. Was it removed before, or was the plan made for another model?"
        )
    return branch


def _replace_activation(context: EditContext, edit: edits.Replace) -> None:
    forward = describe(context.model).feed_forward(edit.unit)
    if forward is None or forward.state != "nonlinear":
        raise ValueError(
            f"Expected '{edit.unit}' to be the activation of a two-linear MLP, but it is not. "
            "Was it removed before, or was the plan made for another model?"
        )
    first = get_module(context.model, forward.first)
    check_plain(forward.first, first)
    check_plain(forward.second, get_module(context.model, forward.second))
    width, hidden = linear_shape(first)
    if edit.leaves == "affine":
        linear = nn.Linear(width, width, device="meta")  # drawing initial values would move the random state
        linear.weight, linear.bias = Parameter(torch.eye(width)), Parameter(torch.zeros(width))
        context.register(linear, _likes(first), stand_in_values(edit, context.tensors))
        context.replace_module(forward.first, linear)
        context.replace_by_identity((forward.activation, *forward.between, forward.second))
    elif edit.leaves == "slope_bias":
        context.register(new := SlopeBias(hidden), _likes(first), stand_in_values(edit, context.tensors))
        context.replace_module(forward.activation, new)
    else:
        context.replace_module(forward.activation, nn.Identity())


def _replace_branch(context: EditContext, edit: edits.Replace) -> None:
    branch = _branch(context.model, edit.unit, edit.kind)
    stand_in: nn.Module = PassThrough(branch.returns)
    if edit.leaves != "identity":
        stand_in = (Affine if edit.leaves == "affine" else Constant)(branch.dim, branch.returns)
        context.register(
            stand_in, _likes(get_module(context.model, branch.path)), stand_in_values(edit, context.tensors)
        )
    context.replace_module(branch.path, stand_in)
    if edit.leaves == "identity":
        context.replace_by_identity(through_last_matrix(context.model, branch.then))
    else:
        context.replace_by_identity(branch.then if edit.leaves == "affine" else branch.followers)


def _likes(*old: nn.Module) -> dict[str, Parameter]:
    """Return the weight and bias of modules as models for the parameters of a fitted replacement, by name."""
    weight, bias = matrix_and_vector(*old)
    return {"weight": weight, "slope": bias, "bias": bias}


@execute.register
def _(edit: edits.Merge, context: EditContext) -> None:
    new = merged_linear(context.model, edit)
    before = {p: get_module(context.model, p) for p in (edit.into, *edit.from_, edit.norm, edit.scale) if p}
    context.register(new, _likes(before[edit.into]), dict(new.named_parameters()))
    context.replace_module(edit.into, new)
    context.replace_by_identity(path for path in edit.from_ if path != edit.into)
    if edit.norm is not None:
        context.replace_module(edit.norm, without_affine(get_module(context.model, edit.norm)))
    if edit.scale is not None:
        context.replace_by_identity((edit.scale,))
    for path, old in before.items():
        carry_hooks(old, get_module(context.model, path))
