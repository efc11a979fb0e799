"""Optimizers of a Trainer: checked before surgery, and bound to the same parameters again when a run is resumed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from torch import nn
from torch.nn import Parameter
from torch.optim import Optimizer

from prunerecover.checkpoint.ledger_record import GroupNames, GroupPositions
from prunerecover.surgery.apply_edits import Applied
from prunerecover.surgery.optimizer_update import join_group, update_optimizer


def check_held(optimizers: Sequence[Optimizer], network: nn.Module) -> None:
    """Raise RuntimeError if optimizers hold some, but not all, of the network's trainable parameters."""
    held = _held(optimizers)
    lost = [name for name, p in network.named_parameters() if p.requires_grad and p not in held]
    if optimizers and lost:
        raise RuntimeError(
            f"Expected every trainable parameter of the network in an optimizer, but none holds {', '.join(lost[:3])}"
            f"{', ...' if len(lost) > 3 else ''}. Add them in configure_optimizers, or freeze them "
            "(requires_grad=False)."
        )


def group_names(optimizers: Sequence[Optimizer], module: nn.Module) -> GroupNames:
    """Return the names of the parameters in each group of each optimizer; "" for parameters of something else."""
    names = {p: name for name, p in module.named_parameters()}
    return [[[names.get(p, "") for p in group["params"]] for group in o.param_groups] for o in optimizers]


def rebind(
    optimizers: Sequence[Optimizer], module: nn.Module, saved: GroupNames, gone: Collection[Parameter] = ()
) -> None:
    """Put parameters into the groups and the order that an optimizer's state was saved with.

    Args:
        optimizers: As `configure_optimizers` made them, or as they are in a fit.
        module: Holds the parameters.
        saved: Names of parameters, by optimizer and group.
        gone: Parameters that the module held before, and groups may still hold.

    Raises:
        RuntimeError: If the optimizers are not those of the checkpoint.
    """
    by_name = dict(module.named_parameters())
    inside = set(by_name.values())
    found = [len(o.param_groups) for o in optimizers]
    if found != [len(groups) for groups in saved]:
        raise RuntimeError(
            f"Expected optimizers with {[len(g) for g in saved]} parameter groups, as in the checkpoint, but "
            f"configure_optimizers made {found}. Use the same configure_optimizers as in the run that is resumed."
        )
    for optimizer, groups in zip(optimizers, saved, strict=True):
        for group, names in zip(optimizer.param_groups, groups, strict=True):
            missing = [name for name in names if name and name not in by_name]
            if missing:
                raise RuntimeError(
                    f"Expected parameter '{missing[0]}' of the checkpoint's optimizer in {type(module).__name__}, but "
                    "it has none of this name. Resume with the LightningModule that the checkpoint was saved from."
                )
            others = [p for p in group["params"] if p not in gone and p not in inside]
            if all(names) or (gone and names.count("") == len(others)):
                elsewhere = iter(others)
                group["params"][:] = [by_name[name] if name else next(elsewhere) for name in names]
                if "param_names" in group:
                    group["param_names"] = list(names)


def forget_gradients(optimizers: Iterable[Optimizer]) -> None:
    """Drop all gradients: stale ones would move what is gone and distort the clip norm."""
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)


def check_joinable(optimizers: Sequence[Optimizer], network: nn.Module) -> None:
    """Raise RuntimeError if there are optimizers, but none holds a parameter of the network for adapters to join."""
    if optimizers and not any(p in _held(optimizers) for p in network.parameters()):
        raise RuntimeError(
            "Expected an optimizer that holds parameters of the network, for its adapters to join, but none does. Add "
            "the network's parameters, or its head's, in configure_optimizers."
        )


def take_adapters(optimizers: Sequence[Optimizer], network: nn.Module, injected: Applied) -> GroupPositions:
    """Let adapters join the groups of the weights under them; what they froze leaves.

    Adapters on weights that no optimizer holds, because the user froze them, join the first group that holds any
    parameter of the network.

    Args:
        optimizers: Of the fit.
        network: With its adapters.
        injected: What injecting them added and froze.

    Returns:
        Where what left was.
    """
    held = _held(optimizers)
    other = next((p for p in network.parameters() if p in held), None)
    places = positions_of(optimizers, injected.removed)
    if other is not None:
        joining = {name: (new, like if like in held else other) for name, (new, like) in injected.added.items()}
        for optimizer in optimizers:
            update_optimizer(optimizer, replace(injected, added=joining))
    return places


def return_adapters(
    optimizers: Sequence[Optimizer], merged: Applied, thawed: Mapping[str, Parameter], places: GroupPositions
) -> None:
    """Let adapters leave and what they froze return to where it was, with its moments to begin anew.

    Args:
        optimizers: Of the fit.
        merged: What merging the adapters removed.
        thawed: Parameters that they had frozen, by name.
        places: Optimizer and group of each, as `take_adapters` returned them.
    """
    for optimizer in optimizers:
        update_optimizer(optimizer, merged)
    back = positions_of(optimizers, thawed)
    for name, (number, group) in places.items():
        if name not in back and number < len(optimizers) and group < len(optimizers[number].param_groups):
            join_group(optimizers[number], optimizers[number].param_groups[group], {name: thawed[name]})


def _held(optimizers: Iterable[Optimizer]) -> set[Parameter]:
    return {p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}


def positions_of(optimizers: Iterable[Optimizer], parameters: Mapping[str, Parameter]) -> GroupPositions:
    """Return where parameters are; without those that no optimizer holds."""
    names = {parameter: name for name, parameter in parameters.items()}
    return {
        names[p]: [i, j]
        for i, optimizer in enumerate(optimizers)
        for j, group in enumerate(optimizer.param_groups)
        for p in group["params"]
        if p in names
    }
