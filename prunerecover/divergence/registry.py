"""Registry of divergences: by name, by a custom callable, or by the structure of an output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from prunerecover.divergence import terms
from prunerecover.divergence.detection_map import detection_map, layout_of
from prunerecover.divergence.detection_set import detection_set, picked_detections
from prunerecover.divergence.outputs import Outputs, Parts, check_alike

Divergence = Callable[[Any, Any], Tensor | Mapping[str, Tensor]]
"""`(dense, pruned)` -> mean over samples, a differentiable scalar >= 0, or several by name to be summed.

Both arguments are tensors, or tensors by name if an output has several parts.
"""


def heads(dense: Mapping[str, Tensor], pruned: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the divergence of several heads, by structure of each head, divided by the number of heads."""
    found = {name: DIVERGENCES[name_for(dense[name])](dense[name], pruned[name]) for name in dense}
    return {name: total(divergence) / len(found) for name, divergence in found.items()}


def of_tensors(divergence: Divergence) -> Divergence:
    """Return a divergence of tensors extended to tensors by name: each divided by the number of tensors."""

    def by_share(dense: Any, pruned: Any) -> Tensor | Mapping[str, Tensor]:
        if isinstance(dense, Tensor):
            return divergence(dense, pruned)
        return {name: total(divergence(dense[name], pruned[name])) / len(dense) for name in dense}

    return by_share


def total(divergence: Tensor | Mapping[str, Tensor]) -> Tensor:
    """Return the sum of the values of a divergence."""
    return divergence if isinstance(divergence, Tensor) else torch.stack(list(divergence.values())).sum()


DIVERGENCES: dict[str, Divergence] = {
    "logits": of_tensors(terms.logits),
    "relative": of_tensors(terms.relative),
    "cosine": of_tensors(terms.cosine),
    "dense_prediction": of_tensors(terms.pixels),
    "detection_map": of_tensors(detection_map),
    "detection_set": detection_set,
    "picked_detections": picked_detections,
    "heads": heads,
}
ROUNDED = 1e-3  # of a norm of 1, in half precision
_chosen: ContextVar[str | Divergence | None] = ContextVar("divergence", default=None)


def register_divergence(name: str, divergence: Divergence) -> None:
    """Register a custom function under a name, for `divergence=name`.

    Args:
        name: New name of the divergence.
        divergence: Function `(dense, pruned) -> scalar`, the differentiable mean over samples.

    Raises:
        ValueError: If another divergence has the name.
        TypeError: If the name is no word, or the divergence is not callable.
    """
    if not isinstance(name, str) or not name.strip():
        raise TypeError(f"Expected a word as the name of the divergence, but got {name!r}. Pass one.")
    check_divergence(divergence)
    if DIVERGENCES.get(name, divergence) is not divergence:
        raise ValueError(f"Expected a name that no divergence has, but '{name}' is taken. Choose another.")
    DIVERGENCES[name] = divergence


def check_divergence(divergence: object) -> None:
    """Raise ValueError or TypeError unless the argument is the name of a divergence, a function, or None."""
    if isinstance(divergence, str) and divergence not in DIVERGENCES:
        raise ValueError(
            f"Expected argument divergence to be one of {', '.join(DIVERGENCES)}, or a callable (dense, pruned) -> "
            f"scalar, but got '{divergence}'. Leave it out to have it chosen by the output."
        )
    if divergence is not None and not isinstance(divergence, str) and not callable(divergence):
        raise TypeError(
            "Expected argument divergence to be a name or a callable (dense, pruned) -> scalar, but got "
            f"{type(divergence).__name__}. Leave it out to have it chosen by the output."
        )


@contextmanager
def comparing_by(divergence: str | Divergence | None) -> Iterator[None]:
    """Compare outputs by a divergence inside a `with` block; None: the outer choice, by default the structure."""
    check_divergence(divergence)
    token = _chosen.set(_chosen.get() if divergence is None else divergence)
    try:
        yield
    finally:
        _chosen.reset(token)


def chosen_divergence() -> str | Divergence | None:
    """Return the choice of `comparing_by`; None: by the structure of outputs."""
    return _chosen.get()


def name_for(outputs: Outputs) -> str:
    """Return the name of the divergence for the structure of the dense outputs.

    >>> name_for(torch.zeros(2, 10)), name_for(torch.zeros(2, 10, 8, 8)), name_for(-torch.eye(2))
    ('logits', 'relative', 'cosine')
    """
    if isinstance(outputs, Parts):
        return outputs.structure
    if layout_of(outputs) is not None:
        return "detection_map"
    if _are_directions(outputs):
        return "cosine"
    return "logits" if outputs.ndim in (2, 3) and outputs.shape[-1] > 1 else "relative"


def _are_directions(outputs: Tensor) -> bool:
    """Whether outputs `(N, features)` are embeddings of unit norm, and no probabilities."""
    if outputs.ndim != 2 or outputs.shape[-1] < 2 or not outputs.is_floating_point():
        return False
    norms = torch.linalg.vector_norm(outputs.detach(), dim=-1, dtype=torch.promote_types(outputs.dtype, torch.float32))
    return bool((norms - 1).abs().max() < ROUNDED and outputs.min() < 0)


def output_divergence(dense: Outputs, pruned: Outputs) -> Tensor:
    """Return the mean divergence over samples, a scalar >= 0.

    Unless chosen by `comparing_by`, the divergence follows from the structure of the outputs. Two-dimensional tensors
    `(N, classes)` and three-dimensional `(N, tokens, vocabulary)` are taken as logits: KL(dense || pruned) in nats;
    rows of unit norm, some numbers below zero, as embeddings: 1 - cos.
    Tensors without a known structure, and with a single value per position: squared L2 relative to the squared dense
    norm.

    Raises:
        OtherShape: If the shapes differ, as for detections.

    >>> output_divergence(torch.zeros(2, 3), torch.ones(2, 3)).item()
    0.0
    """
    return total(output_parts(dense, pruned))


def output_parts(dense: Outputs, pruned: Outputs) -> Tensor | Mapping[str, Tensor]:
    """Return the mean divergence over samples, by part for a divergence with parts; see `output_divergence`."""
    check_alike(dense, pruned)
    chosen = _chosen.get() or name_for(dense)
    divergence = DIVERGENCES[chosen] if isinstance(chosen, str) else chosen
    return divergence(*(outputs.tensors if isinstance(outputs, Parts) else outputs for outputs in (dense, pruned)))
