"""Example inputs of a network, out of whatever a user hands in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from prunerecover.families.describe import describe
from prunerecover.model.batches import ModelInputs
from prunerecover.model.evaluation import inputs_of


def example_of(model: nn.Module, batches: Any) -> ModelInputs | None:
    """Return the inputs of one call, on the network's device.

    Args:
        model: Unwrapped.
        batches: One batch, or an iterable of batches, whose first is taken. None: the inputs that the model brings.

    Returns:
        None if there are none.

    Raises:
        ValueError: If there is no batch.
        TypeError: If a batch is of an unknown form.
    """
    given = getattr(model, "dummy_inputs", None) if batches is None else batches
    if given is None:
        return None
    return _first(given, model)


def needed(model: nn.Module, example: ModelInputs | None, kinds: Iterable[str]) -> ModelInputs:
    """Return the example, or raise ValueError if there is none.

    Args:
        model: Unwrapped.
        example: As `example_of` returns it.
        kinds: That are looked for, for the message.
    """
    if example is not None:
        return example
    if not set(kinds) & {"layer", "channel", "head", "neuron", "hidden"}:
        describe(model)  # says which families are known by their parts
    raise ValueError(
        f"Expected batches, or one batch, to find what may go in {type(model).__name__}, but got none. Pass a batch as "
        "your loader gives it."
    )


def _first(given: Any, model: nn.Module) -> ModelInputs:
    """Return one batch as inputs; a list is one if it is of the form of one, and else a list of batches."""
    try:
        return inputs_of(given, model)
    except TypeError:
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise
    for batch in given:
        return inputs_of(batch, model)
    raise ValueError("Expected at least one batch to look at, but got none. Was a generator consumed before?")
