"""Routes of what is scored: the router of a routed language model reads what stands before it, and nothing of it."""

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
    """A language model of several networks, of which a router picks one for each prompt: see `RoutedCausalLM`."""

    routed: bool
    device: torch.device

    def route(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> list[int]:
        """Return the number of the network for each prompt, `(N,)`."""

    def running(self, number: int) -> AbstractContextManager[nn.Module]:
        """Give a network by its number, ready to run."""


def input_device(model: nn.Module) -> torch.device:
    """Return the device that a model's tokens have to be on."""
    return model.device if isinstance(model, Routed) else device_of(model)


def routes_before(model: nn.Module, inputs: Mapping[str, Tensor], labels: Tensor) -> dict[str, Any]:
    """Return the argument by which a routed model is called with the routes of prompts; none for other models.

    Args:
        model: A language model.
        inputs: `input_ids` `(N, T)` and, where sequences are padded, `attention_mask`.
        labels: `(N, T)`, -100 where nothing is scored; a prompt is what stands before the first that is scored.

    Raises:
        ValueError: If a routed model is to score a text that nothing stands before.
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
            "route by the text itself would know what is asked for. Give its prompt labels of -100, or judge one set: "
            "model.network(number)."
        )
    return {"routes": model.route(ids, prompts)}


def networks_of(model: nn.Module, prompts: Tensor) -> Iterator[tuple[nn.Module, list[int]]]:
    """Yield the networks that continue prompts, `(N, T)`, each ready to run, and the numbers of its prompts.

    A model that is not routed is the only network.
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
