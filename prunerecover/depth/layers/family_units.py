"""Units of models of a supported family: blocks, attentions, MLPs and activations, by the family's description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from prunerecover.families.describe import describe, is_supported
from prunerecover.families.layout import Block
from prunerecover.model.linears import check_plain, linear_shape
from prunerecover.model.paths import get_module
from prunerecover.plan.kinds import Kind
from prunerecover.plan.units import Unit
from prunerecover.refusal import Refusal


def known_by_parts(model: nn.Module, kinds: Sequence[str]) -> bool:
    """Whether units of some kinds are known by the parts of a model's family, without the computation graph.

    Args:
        model: Model without wrappers.
        kinds: Kinds of the units.
    """
    return is_supported(model) and "layer" not in kinds


def family_units(model: nn.Module, kinds: Sequence[str], macs: Mapping[str, int]) -> tuple[Unit, ...]:
    """List the present units of a supported model, in order of depth.

    Args:
        model: Model without wrappers.
        kinds: Kinds among "block", "attention", "mlp" and "activation".
        macs: MACs of a forward pass, by module; empty: all units get 0.

    Raises:
        ValueError: If linears around an activation compute their weights (masks, weight norm, parametrizations).
    """
    return tuple(u for block in describe(model).blocks for u in _units_of(model, block, macs, kinds))


def _units_of(model: nn.Module, block: Block, macs: Mapping[str, int], kinds: Sequence[str]) -> list[Unit]:
    units = [] if block.stays else [unit_of(model, block.path, "block", (block.path,), macs, block.path)]
    for branch in (block.attention, block.mlp):
        if branch is not None:
            norm = (branch.norm,) if branch.norm else ()
            targets = (*norm, branch.path, *branch.then)
            units.append(unit_of(model, branch.path, branch.kind, targets, macs, block.path))
    forward = block.feed_forward
    if forward is not None and forward.state == "nonlinear" and "activation" in kinds:
        for path in (forward.first, forward.second):
            check_plain(path, get_module(model, path))
        targets = (forward.activation, forward.first, forward.second)
        units.append(activation_unit(model, targets, macs, block.path))
    return [unit for unit in units if unit.kind in kinds]


def unit_of(
    model: nn.Module, name: str, kind: Kind, targets: tuple[str, ...], macs: Mapping[str, int], block: str
) -> Unit:
    """Return a unit with the parameters and MACs of the modules that go.

    Args:
        model: Model without wrappers.
        name: Name of the unit.
        kind: Kind of the unit.
        targets: Paths of the modules.
        macs: MACs of a forward pass, by module.
        block: Path of the block around; empty: none.
    """
    return Unit(name, kind, targets, parameters_of(model, targets), sum(macs.get(path, 0) for path in targets), block)


def activation_unit(model: nn.Module, targets: tuple[str, str, str], macs: Mapping[str, int], block: str) -> Unit:
    """Return an activation, with the savings of merging the linears around.

    Args:
        model: Model without wrappers.
        targets: Paths of the activation, and of the linears before and behind.
        macs: MACs of a forward pass, by module.
        block: Path of the block around; empty: none.
    """
    activation, first, second = targets
    (width, hidden), (_, out) = (linear_shape(get_module(model, path)) for path in (first, second))
    saved = macs.get(first, 0) + macs.get(second, 0) - macs.get(first, 0) // hidden * out
    return Unit(activation, "activation", targets, parameters_of(model, targets) - out * (width + 1), saved, block)


def parameters_of(model: nn.Module, paths: Sequence[str]) -> int:
    """Return the number of parameters in modules, each counted once."""
    return sum(p.numel() for p in {p for path in paths for p in get_module(model, path).parameters()})


def explain_missing_activations(model: nn.Module) -> None:
    """Raise ValueError, with the reason, if no block of a supported model has a removable activation."""
    layout = describe(model)
    blocks, family = layout.blocks, layout.family
    if any(block.feed_forward is not None for block in blocks):
        return
    reasons = {block.no_activation for block in blocks if block.mlp is not None}
    if len(reasons) == 1 and "" not in reasons:
        raise Refusal(f"{family} to have removable activations", reasons.pop(), "Use 'attention' or 'mlp'.")


def check_blocks_apart(model: nn.Module) -> None:
    """Raise ValueError if one module is at two places of a list of blocks: neither could be removed alone."""
    for path, container in model.named_modules():
        if not isinstance(container, nn.ModuleList | nn.Sequential):
            continue
        first: dict[nn.Module, int] = {}
        for number, block in enumerate(container):
            other = first.setdefault(block, number)
            if other != number and any(True for _ in block.parameters()):
                raise Refusal(
                    "every block to be a module of its own",
                    f"'{path}.{number}' is '{path}.{other}'",
                    "Put copy.deepcopy of it there to remove them one by one.",
                )
