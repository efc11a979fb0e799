"""Optimizers of a Trainer: checked before surgery, and bound to the same parameters again in a resumed run."""

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
    """Return the names of the parameters in each group of each optimizer; "" for parameters outside the module."""
    names = {p: name for name, p in module.named_parameters()}
    return [[[names.get(p, "") for p in group["params"]] for group in o.param_groups] for o in optimizers]


def rebind(
    optimizers: Sequence[Optimizer], module: nn.Module, saved: GroupNames, gone: Collection[Parameter] = ()
) -> None:
    """Put parameters into the groups and the order of a saved optimizer state.

    Args:
        optimizers: Optimizers from `configure_optimizers`, or of a running fit.
        module: Module of the parameters.
        saved: Names of parameters, by optimizer and group.
        gone: Parameters removed from the module, perhaps still in groups.

    Raises:
        RuntimeError: If the optimizers do not match the checkpoint.
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
    """Drop all gradients: stale gradients would move removed parameters and distort the clip norm."""
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
    """Add adapters to the groups of the weights under them; remove frozen parameters.

    Adapters on weights outside all optimizers, frozen by the user, join the first group with any parameter of the
    network.

    Args:
        optimizers: Optimizers of the fit.
        network: Network with its adapters.
        injected: Parameters added and frozen by the injection.

    Returns:
        The former positions of the frozen parameters.
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
    """Remove adapters from the optimizers, and put unfrozen parameters back at their positions, without moments.

    Args:
        optimizers: Optimizers of the fit.
        merged: Parameters removed by the merge.
        thawed: Parameters unfrozen by the merge, by name.
        places: Optimizer and group of each parameter, as returned by `take_adapters`.
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
    """Return the positions of parameters, by name; parameters outside all optimizers are left out."""
    names = {parameter: name for name, parameter in parameters.items()}
    return {
        names[p]: [i, j]
        for i, optimizer in enumerate(optimizers)
        for j, group in enumerate(optimizer.param_groups)
        for p in group["params"]
        if p in names
    }
