"""Routes for scored text: the router of a routed language model reads only the prompt before the scored tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from prunerecover.importance.measuring.losses import IGNORED
from prunerecover.model.evaluation import device_of


@runtime_checkable
class Routed(Protocol):
    """Language model of several networks, with a router to choose a network for each prompt: see `RoutedCausalLM`."""

    routed: bool
    device: torch.device

    def route(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> list[int]:
        """Return the number of the network for each prompt, `(N,)`."""

    def running(self, number: int) -> AbstractContextManager[nn.Module]:
        """Give a network by number, ready to run."""


def input_device(model: nn.Module) -> torch.device:
    """Return the device for the tokens of a model."""
    return model.device if isinstance(model, Routed) else device_of(model)


def routes_before(model: nn.Module, inputs: Mapping[str, Tensor], labels: Tensor) -> dict[str, Any]:
    """Return the argument with the routes of prompts for a routed model; empty for other models.

    Args:
        model: Language model.
        inputs: Mapping with `input_ids` `(N, T)` and, for padded sequences, `attention_mask`.
        labels: Labels, `(N, T)`, -100 for tokens without a score; the prompt ends before the first scored token.

    Raises:
        ValueError: If a routed model is to score a text without a prompt.
    """
    if not isinstance(model, Routed) or not model.routed:
        return {}
    ids = inputs["input_ids"]
    before = (labels != IGNORED).cumsum(1) == 0
    prompts = before & inputs.get("attention_mask", torch.ones_like(ids)).bool()
    bare = (~prompts.any(1)).nonzero()
    if len(bare):
        raise ValueError(
            f"Expected a prompt before what is scored, for the router to read, but sample {int(bare[0])} has none: a "
            "route by the scored text itself would know the answer. Give the prompt labels of -100, or score a single "
            "set: model.network(number)."
        )
    return {"routes": model.route(ids, prompts)}


def networks_of(model: nn.Module, prompts: Tensor) -> Iterator[tuple[nn.Module, list[int]]]:
    """Yield the network for some of the prompts, `(N, T)`, ready to run, with the numbers of these prompts.

    A model without routes is the only network.
    """
    if not isinstance(model, Routed):
        yield model, list(range(len(prompts)))
        return
    for number, rows in by_route(model.route(prompts)).items():
        with model.running(number) as network:
            yield network, rows


def by_route(routes: list[int]) -> dict[int, list[int]]:
    """Return the numbers of the samples of each route.

    >>> by_route([2, 0, 2])
    {2: [0, 2], 0: [1]}
    """
    return {number: [i for i, one in enumerate(routes) if one == number] for number in dict.fromkeys(routes)}
