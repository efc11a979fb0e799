"""Optimizers of a Trainer: checked before surgery, and bound to the same parameters again when a run is resumed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

GroupNames = list[list[list[str]]]


def check_held(optimizers: Sequence[Optimizer], network: nn.Module) -> None:
    """Raise RuntimeError if optimizers hold some, but not all, of the network's trainable parameters."""
    held = {p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
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


def rebind(optimizers: Sequence[Optimizer], module: nn.Module, saved: GroupNames) -> None:
    """Put parameters into the groups and the order that a checkpoint's optimizer state was saved with.

    Raises:
        RuntimeError: If the optimizers are not those of the checkpoint.
    """
    by_name = dict(module.named_parameters())
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
            if all(names):
                group["params"][:] = [by_name[name] for name in names]
                if "param_names" in group:
                    group["param_names"] = list(names)
