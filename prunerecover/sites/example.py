"""Example inputs of a network, from a loader, a list of batches or a batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from prunerecover.families.describe import describe
from prunerecover.model.batches import ModelInputs
from prunerecover.model.evaluation import inputs_of


def example_of(model: nn.Module, batches: Any) -> ModelInputs:
    """Return the inputs of one call, on the network's device.

    Args:
        model: Network without wrappers.
        batches: Batch, or iterable of batches whose first is taken. A list in the form of a batch counts as a batch.

    Raises:
        ValueError: If there is no batch.
        TypeError: If a batch is of an unknown form.
    """
    try:
        return inputs_of(batches, model)
    except TypeError:
        if isinstance(batches, str | bytes) or not isinstance(batches, Iterable):
            raise
    for batch in batches:
        return inputs_of(batch, model)
    raise ValueError("Expected at least one batch to look at, but got none. Was a generator consumed before?")


def needed(model: nn.Module, example: ModelInputs | None, kinds: Iterable[str]) -> ModelInputs:
    """Return the example, or the `dummy_inputs` of the model; raise ValueError without either.

    Args:
        model: Network without wrappers.
        example: Inputs from `example_of`, if batches were given.
        kinds: Requested kinds, for the message.
    """
    if example is not None:
        return example
    if getattr(model, "dummy_inputs", None) is not None:
        return inputs_of(model.dummy_inputs, model)
    if not set(kinds) & {"layer", "channel", "head", "head_dim", "neuron", "hidden"}:
        describe(model)  # says which families are known by their parts
    raise ValueError(
        f"Expected batches, or one batch, to find what may go in {type(model).__name__}, but got none. Pass a batch as "
        "your loader gives it."
    )
