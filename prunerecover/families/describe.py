"""Registry of families: the first family with a model's classes reads the blocks.

The built-in families recognise class names, without importing timm or transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from torch import nn

from prunerecover.families import timm_vit, transformers_families, transformers_layers
from prunerecover.families.layout import Layout
from prunerecover.model.replacements import Replacement

Reader = Callable[[nn.Module], Layout | None]

# Names of families by reader; the latest registered reader is asked first.
FAMILIES: dict[Reader, tuple[str, ...]] = {
    transformers_layers.read: transformers_families.SUPPORTED,
    timm_vit.read: timm_vit.SUPPORTED,
}

_CONTAINERS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def register_family(read: Reader, *names: str) -> Reader:
    """Let models of a custom architecture be pruned in depth, wherever a known family can be.

    Args:
        read: Function `(model) -> Layout`, or None for another model. The function is called again after every edit and
            must describe the present structure: None in place of a branch with a `Replacement` as module.
        names: Names of the families known to `read`, as listed in messages.

    Raises:
        ValueError: If no name is given.
    """
    if not names:
        raise ValueError("Expected the name of the family, which messages list, but got none.")
    FAMILIES[read] = names
    return read


def supported_families() -> tuple[str, ...]:
    """Return the names of all families, in the order of messages."""
    return tuple(name for names in reversed(FAMILIES.values()) for name in names)


def describe(model: nn.Module) -> Layout:
    """Describe the blocks of a supported model in its present state.

    Raises:
        ValueError: If the model is of no supported family; the message lists the families.
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
    """Describe the blocks of a model, one layout per list of blocks.

    Raises:
        ValueError: If the model is of no supported family, and no transformers model with the lengths of its lists of
            layers in the config.
    """
    try:
        return (describe(model),)
    except ValueError:
        stacks = transformers_layers.read_stacks(model)
        if not stacks:
            raise
        return stacks


def describe_blocks(model: nn.Module) -> Layout:
    """Describe the blocks of a model with a single list of blocks.

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
    """Return the path of the list of a model's blocks; cached per model, as no surgery moves the list.

    Raises:
        ValueError: As `describe_blocks`.
    """
    if model not in _CONTAINERS:
        _CONTAINERS[model] = describe_blocks(model).container
    return _CONTAINERS[model]


def unnamed_stacks(model: nn.Module) -> tuple[Layout, ...]:
    """Describe the lists of layers of a transformers model outside the supported families; none for other models."""
    return () if is_supported(model) else transformers_layers.read_stacks(model)


def layout_of(model: nn.Module) -> Layout | None:
    """Describe a model as `describe` does; None outside the supported families."""
    try:
        return describe(model)
    except ValueError:
        return None
    except AttributeError:  # a reader that was registered may look for parts of a block that is gone
        if any(isinstance(module, Replacement) for module in model.modules()):
            return None
        raise


def is_supported(model: nn.Module) -> bool:
    """Whether `describe` knows the model."""
    return layout_of(model) is not None
