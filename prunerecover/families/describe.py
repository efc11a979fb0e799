"""The registry of families: a model's blocks are read by the first family that knows its classes.

The families that come with prunerecover go by class names, so that neither timm nor transformers is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from torch import nn

from prunerecover.families import timm_vit, transformers_families, transformers_layers
from prunerecover.families.layout import Layout

Reader = Callable[[nn.Module], Layout | None]

# Names of families by what reads them; the latest registered is asked first.
FAMILIES: dict[Reader, tuple[str, ...]] = {
    transformers_layers.read: transformers_families.SUPPORTED,
    timm_vit.read: timm_vit.SUPPORTED,
}

_CONTAINERS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def register_family(read: Reader, *names: str) -> Reader:
    """Let models of an own architecture be pruned in depth, wherever one of a known family can be.

    Args:
        read: `(model) -> Layout`, or None if the model is something else. It is called again after every edit and must
            tell the present structure: None in place of a branch whose module is a `Replacement`.
        names: Of the families that `read` knows, as messages list them.

    Raises:
        ValueError: If no name is given.
    """
    if not names:
        raise ValueError("Expected the name of the family, which messages list, but got none.")
    FAMILIES[read] = names
    return read


def supported_families() -> tuple[str, ...]:
    """Return the names of all families, in the order in which messages list them."""
    return tuple(name for names in reversed(FAMILIES.values()) for name in names)


def describe(model: nn.Module) -> Layout:
    """Describe the blocks of a supported model, as it is now.

    Raises:
        ValueError: If the model is of no supported family; the message lists them.
    """
    for read in reversed(FAMILIES):
        layout = read(model)
        if layout is not None:
            return layout
    raise ValueError(
        f"Expected a model of a supported family ({', '.join(supported_families())}), but got {type(model).__name__}, "
        "in which no prunable unit was found. If the network is inside another module, pass that network (callbacks: "
        "`target=`); an architecture of your own is added with `register_family`."
    )


def describe_stacks(model: nn.Module) -> tuple[Layout, ...]:
    """Describe what can be taken out of a model as a whole, and what remains be renumbered, by lists of blocks.

    Raises:
        ValueError: If the model is of no supported family, and none of transformers whose config says how long its
            lists of layers are.
    """
    try:
        return (describe(model),)
    except ValueError:
        stacks = transformers_layers.read_stacks(model)
        if not stacks:
            raise
        return stacks


def describe_blocks(model: nn.Module) -> Layout:
    """Describe the blocks of a model with one list of them.

    Raises:
        ValueError: As `describe_stacks`, or if there are two lists.
    """
    stacks = describe_stacks(model)
    if len(stacks) > 1:
        raise ValueError(
            f"Expected a model with one list of blocks, but {type(model).__name__} has {len(stacks)} "
            f"({', '.join(stack.container for stack in stacks)}). Pass the network that holds only one."
        )
    return stacks[0]


def container_of(model: nn.Module) -> str:
    """Return the path of the list of a model's blocks, which no surgery moves: a model is read for it once.

    Raises:
        ValueError: As `describe_blocks`.
    """
    if model not in _CONTAINERS:
        _CONTAINERS[model] = describe_blocks(model).container
    return _CONTAINERS[model]


def unnamed_stacks(model: nn.Module) -> tuple[Layout, ...]:
    """Describe the lists of layers of a model of transformers that is of no supported family; none for all others."""
    return () if is_supported(model) else transformers_layers.read_stacks(model)


def layout_of(model: nn.Module) -> Layout | None:
    """Describe a model as `describe` does; None if it is of no supported family."""
    try:
        return describe(model)
    except ValueError:
        return None


def is_supported(model: nn.Module) -> bool:
    """Whether `describe` knows the model."""
    return layout_of(model) is not None
