"""Score of a pruned network by a function of the user, for any metric: mAP, MMLU, the negative of a word error rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from prunerecover.display.progress import beside_other_displays
from prunerecover.importance.measuring.names import kind_of_thing
from prunerecover.model.evaluation import evaluating

Score = Callable[[nn.Module], float]  # metric of a network, larger is better


def check_score(score: Any, *, kept: bool = False) -> None:
    """Raise TypeError unless the argument `score` is a function, or None; ValueError unless scores can be kept.

    Args:
        score: Argument.
        kept: Whether a store keeps the scores, by the name of the function.
    """
    if score is None:
        return
    if not callable(score) or isinstance(score, type):
        raise TypeError(f"Expected argument score to be a callable (network) -> float, but got {kind_of_thing(score)}.")
    if kept and (not isinstance(score, FunctionType) or "<" in score.__qualname__):
        raise ValueError(
            f"Expected argument score to be a function of a module with store=..., but got {kind_of_thing(score)}. A "
            "store keeps scores by the name of the function: define it by def at the top of a module, or leave out the "
            "store."
        )


def score_of(network: nn.Module, score: Score, seed: int) -> float:
    """Return the score of a network in evaluation mode, without gradients; all networks get the same random numbers.

    Args:
        network: Copy for the score alone.
        score: Function of the user.
        seed: Seed of the random numbers.

    Raises:
        TypeError: If the score returns no number.
        ValueError: If the score returns several numbers, NaN or infinity.
        Exception: Errors of the score, with a note.
    """
    with evaluating(network), beside_other_displays():
        torch.manual_seed(seed)
        try:
            found = score(network)
        except Exception as error:
            error.add_note(
                "This was in score(network), for a pruned network. Try score(model) on the dense network first."
            )
            raise
    return _number(found)


def _number(found: Any) -> float:
    """Return the value of a score as a float."""
    shape = tuple(getattr(found, "shape", ()))
    if math.prod(shape) != 1:
        raise ValueError(
            f"Expected score(network) to return a single number, but got values of shape {shape}. Return their mean, "
            "or the most important value."
        )
    try:
        value = float(found)
    except (TypeError, ValueError):
        raise TypeError(
            f"Expected score(network) to return a number, larger is better, but got {found!r:.60}. Return the metric "
            "as a float."
        ) from None
    if not math.isfinite(value):
        raise ValueError(
            f"Expected score(network) to return a finite number, but got {value}. Return the worst value of the metric "
            "for a network that fails."
        )
    return value
