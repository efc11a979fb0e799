"""The cache of keys and values under the names that versions and classes of transformers give it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

NUMBER = "layer_idx"  # what finds a layer's keys and values in the cache
# Arguments and outputs; `cache` since transformers 5.24, where the others are deprecated.
CACHES = ("cache", "past_key_values", "past_key_value", "layer_past", "cache_params")


def cache_given(kwargs: Mapping[str, Any]) -> Any:
    """Return the cache that a module was called with, or None."""
    return next((kwargs[name] for name in CACHES if kwargs.get(name) is not None), None)


def cache_returned(output: object) -> dict[str, Any]:
    """Return the cache of an output under its name, as the next call takes it; empty if there is none."""
    for name in CACHES:
        if getattr(output, name, None) is not None:
            return {name: getattr(output, name)}
    return {}


def takes_cache(module: nn.Module) -> bool:
    """Whether a module's forward names a cache among its arguments."""
    return not set(CACHES).isdisjoint(inspect.signature(type(module).forward).parameters)


def misnumbered(model: nn.Module) -> str:
    """Say which block has the number of another place in the cache, as where blocks were deleted by hand; "" if none.

    Args:
        model: Any network.
    """
    for path, container in model.named_modules():
        for place, block in enumerate(container) if isinstance(container, nn.ModuleList) else ():
            numbers = {int(vars(module)[NUMBER]) for module in block.modules() if vars(module).get(NUMBER) is not None}
            if numbers and place not in numbers:
                return (
                    f" {NUMBER} in '{path}.{place}' is {min(numbers)}, so that it looks at another place of the cache "
                    f"than its own: were blocks deleted by hand? Set {NUMBER} to the place of each block, and "
                    "num_hidden_layers to their number, or let plan_depth remove blocks."
                )
    return ""
