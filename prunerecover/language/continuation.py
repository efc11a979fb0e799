"""Exact continuation: what share of a text a language model writes as it stands, after the text's beginning.

Decoding is greedy, with the model's cache, and teacher-free: each token follows those that the model wrote itself. It
shows what perplexity hides, the errors that pruning adds up over a generation, and runs the code that serves the model.
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
    """Return the share of tokens behind the prompt that greedy decoding gets right, each at its place.

    Arguments and errors are those of `continued_right`.
    """
    return float(continued_right(model, tokens, prompt=prompt, batch_size=batch_size).double().mean())


def continued_right(model: nn.Module, tokens: Tensor, *, prompt: int, batch_size: int = 16) -> Tensor:
    """Return which tokens behind the prompt greedy decoding gets right, each at its place, `(N, T - prompt)`, boolean.

    Args:
        model: A causal language model of transformers, or a routed one, whose router reads the prompts; it is left as
            it was. Settings of generation, such as sampling or where to stop, do not count: as many tokens are written
            as the text has, the end-of-text token as any.
        tokens: Held-out text, `(N, T)`, without padding.
        prompt: How many tokens of each sequence are given.
        batch_size: Sequences at a time.

    Raises:
        ValueError: If these are no sequences, or nothing is left to write or to begin with.
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
    """Return the likeliest next tokens of prompts, `(N, count)`, each by the network that continues it."""
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
