"""Memory of a language model in service: weights, and the key-value cache of a batch of sequences.

The cache is filled by the network itself: a forward pass on an example shows the bytes per token in every layer, and
the layers with a window, which keep no more tokens. States of a fixed size, as in linear attention, count once a
sequence. Quantised and offloaded caches are not covered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from torch import Tensor, nn

from prunerecover.cost.units.serving import Serving
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.evaluation import evaluating, uncompiled

SEQUENCE = -2  # dimension of the tokens in keys and values


def served_memory(network: nn.Module, example: ModelInputs, serving: Serving) -> int:
    """Return the bytes of the weights and of the key-value cache.

    Args:
        network: Language model, unwrapped.
        example: Inputs of the network, for a few tokens.
        serving: Load.

    Raises:
        ValueError: If the network fills no cache.
    """
    weights = {id(tensor): tensor.nbytes for tensor in chain(network.parameters(), network.buffers())}
    return sum(weights.values()) + cache_bytes(network, example, serving)


def cache_bytes(network: nn.Module, example: ModelInputs, serving: Serving) -> int:
    """Return the bytes of the key-value cache; see `served_memory`.

    Args:
        network: Language model, unwrapped.
        example: Inputs of the network, for a few tokens.
        serving: Load.
    """
    output = None
    with evaluating(network), uncompiled(), suppress(TypeError):  # some networks do not take the argument
        output = call(network, replace(example, kwargs={**example.kwargs, "use_cache": True}))
    names = ("cache", "past_key_values")  # the second is an older name in transformers
    layers = list(_layers(next((found for name in names if (found := getattr(output, name, None)) is not None), None)))
    if not layers:
        raise ValueError(
            f"Expected a language model with a key-value cache for a budget in memory, but {type(network).__name__} "
            "fills none. Say params or checkpoint for its weights."
        )
    return sum(_of_layer(layer, serving) for layer in layers)


def _layers(cache: Any) -> Iterator[Any]:
    """Yield the layers of a cache of transformers, including an encoder's cache beside a decoder's."""
    parts = [getattr(cache, name, None) for name in ("self_attention_cache", "cross_attention_cache")]
    for part in parts if any(parts) else [cache]:
        yield from getattr(part, "layers", ())


def _of_layer(layer: Any, serving: Serving) -> int:
    total, window = 0, getattr(layer, "sliding_window", None)
    kept = serving.tokens if window is None else min(serving.tokens, window - 1)  # the new token comes on top
    for name, tensor in vars(layer).items():
        if not isinstance(tensor, Tensor) or tensor.ndim < 2 or not tensor.numel():
            continue
        sequence = tensor.nbytes // tensor.shape[0]
        total += sequence // tensor.shape[SEQUENCE] * kept if name in ("keys", "values") else sequence
    return total * serving.batch
