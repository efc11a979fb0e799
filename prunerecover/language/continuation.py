"""Exact continuation: the share of a text that a language model reproduces from the beginning of the text.

Decoding is greedy, with the cache of the model, and teacher-free: each token follows the tokens of the model itself.
The share shows errors of pruning that add up over a generation, hidden in perplexity, and tests the code used in
production.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.language.prompt_routes import input_device, networks_of
from prunerecover.model.batches import logits_of
from prunerecover.model.evaluation import evaluating
from prunerecover.model.key_values import cache_returned


def exact_continuation(model: nn.Module, tokens: Tensor, *, prompt: int, batch_size: int = 16) -> float:
    """Return the share of correct tokens behind the prompt in greedy decoding, place by place.

    Arguments and errors as in `continued_right`.
    """
    return float(continued_right(model, tokens, prompt=prompt, batch_size=batch_size).double().mean())


def continued_right(model: nn.Module, tokens: Tensor, *, prompt: int, batch_size: int = 16) -> Tensor:
    """Return a mask of the correct tokens behind the prompt in greedy decoding, `(N, T - prompt)`, boolean.

    Tokens are compared place by place.

    Args:
        model: Causal language model of transformers, or a routed model with a router for the prompts; not changed.
            Generation settings, such as sampling or stopping, are ignored: the model writes as many tokens as the text
            has, end-of-text tokens included.
        tokens: Held-out text, `(N, T)`, without padding.
        prompt: Number of given tokens of each sequence.
        batch_size: Sequences per batch.

    Raises:
        ValueError: If `tokens` are no sequences, or `prompt` leaves no token to give or to write.
        TypeError: If the model returns no cache.
    """
    if tokens.ndim != 2 or not tokens.numel():
        raise ValueError(f"Expected tokens (N, T) of one sequence or more, but got {tuple(tokens.shape)}.")
    length = tokens.shape[1]
    if not 0 < prompt < length:
        raise ValueError(
            f"Expected a prompt of 1 to {length - 1} of the {length} tokens, but got {prompt}. Give longer sequences, "
            "or another prompt."
        )
    with evaluating(model):
        pieces = torch.split(tokens.to(input_device(model)), batch_size)
        written = [_written(model, piece[:, :prompt], length - prompt) for piece in pieces]
    return torch.cat(written).cpu() == tokens[:, prompt:].cpu()


def _written(model: nn.Module, prompts: Tensor, count: int) -> Tensor:
    """Return the likeliest next tokens of prompts, `(N, count)`, each from the network of its route."""
    found = prompts.new_empty(len(prompts), count)
    for network, rows in networks_of(model, prompts):
        found[rows] = _greedy(network, prompts[rows], count)
    return found


def _greedy(model: nn.Module, ids: Tensor, count: int) -> Tensor:
    """Return the likeliest next tokens, `(N, count)`, one after the other."""
    cache: dict[str, Any] = {}
    written = []
    for _ in range(count):
        output = model(input_ids=ids, **cache, use_cache=True)
        cache = cache_returned(output)
        if not cache:
            raise TypeError(
                f"Expected a model that returns its cache of keys and values, but {type(model).__name__} does not. "
                "Compare what model.generate writes."
            )
        ids = logits_of(output)[:, -1:].argmax(-1)
        written.append(ids)
    return torch.cat(written, 1)
