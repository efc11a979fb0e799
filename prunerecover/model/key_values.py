"""The cache of keys and values, under the names used in versions and classes of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from prunerecover.model.batches import ModelInputs

NUMBER = "layer_idx"  # index of a layer's keys and values in the cache
# Arguments and outputs; `cache` since transformers 5.24, with all further names deprecated.
CACHES = ("cache", "past_key_values", "past_key_value", "layer_past", "cache_params")
KEPT = (*CACHES, "past", "past_buckets_states", "mems")  # outputs kept for the next call
SWITCH = "use_cache"  # entry of a config


def cache_given(kwargs: Mapping[str, Any]) -> Any:
    """Return the cache among a module's keyword arguments, or None."""
    return next((kwargs[name] for name in CACHES if kwargs.get(name) is not None), None)


def cache_returned(output: object) -> dict[str, Any]:
    """Return the cache of an output by name, as for the next call; empty without a cache."""
    for name in CACHES:
        if getattr(output, name, None) is not None:
            return {name: getattr(output, name)}
    return {}


def without_kept(output: Any) -> Any:
    """Return an output without the values kept for a next call: no loss uses kept values.

    >>> without_kept({"logits": 1, "past_key_values": 2})
    {'logits': 1}
    """
    if isinstance(output, Mapping):
        return {name: value for name, value in output.items() if name not in KEPT}
    return output


@contextmanager
def caches_off(*models: nn.Module) -> Iterator[None]:
    """Turn caches off in the configs of models inside a `with` block."""
    held = [vars(module).get("config") for model in models for module in model.modules()]
    with ExitStack() as stack:
        for config in {id(config): config for config in held}.values():
            if getattr(config, SWITCH, False) is True:
                stack.callback(setattr, config, SWITCH, True)  # configs may hold no attributes of their own
                setattr(config, SWITCH, False)
        yield


def asking_for_cache(model: nn.Module, inputs: ModelInputs) -> ModelInputs | None:
    """Return inputs with the request for a cache; None if the model takes no such argument.

    Args:
        model: Network to call. Forwards that pass on all arguments are known by the model's config.
        inputs: Inputs of a call.
    """
    parameters = inspect.signature(type(model).forward).parameters
    hands_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    known = SWITCH in parameters or (hands_on and hasattr(vars(model).get("config"), SWITCH))
    return replace(inputs, kwargs={**inputs.kwargs, SWITCH: True}) if known else None


def takes_cache(module: nn.Module) -> bool:
    """Whether a module's forward names a cache among the arguments."""
    return not set(CACHES).isdisjoint(inspect.signature(type(module).forward).parameters)


def misnumbered(model: nn.Module) -> str:
    """Return a message on a block numbered for another place in the cache, as after a deletion by hand, else "".

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
