"""Calls of a user's loss with checks of the returned value, and the default loss of labelled batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F

from prunerecover.model.batches import (
    ModelInputs,
    as_inputs,
    call,
    is_padding,
    logits_of,
    on_device,
    predictions_of,
    split_labels,
    without_labels,
)
from prunerecover.model.evaluation import device_of
from prunerecover.model.paths import unwrap

Loss = Callable[[nn.Module, Any], Tensor]

IGNORED = -100  # label left out by cross-entropy


def loss_of(model: nn.Module, batch: Any, loss: Loss) -> Tensor:
    """Return the loss of a batch.

    Args:
        model: Argument of the loss.
        batch: Batch of any form that the loss takes; its tensors are moved to the model's device.
        loss: `loss(model, batch) -> scalar`.

    Raises:
        TypeError: If the loss returns no tensor.
        ValueError: If the value is not a scalar, or no gradient flows from the value.
    """
    return check_loss(loss(model, on_device(batch, device_of(model))), gradients=True)


def check_loss(value: object, *, gradients: bool = False) -> Tensor:
    """Return the value of a loss if it is valid.

    Args:
        value: Value for a batch.
        gradients: Whether gradients have to flow from the value.

    Raises:
        TypeError: If the value is no tensor.
        ValueError: If the value is not a scalar, or no gradient flows from the value.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"Expected loss(model, batch) to return a scalar tensor, but got {type(value).__name__}.")
    if value.numel() != 1 or (gradients and not value.requires_grad):
        raise ValueError(
            "Expected loss(model, batch) to return a scalar that gradients flow from, but got shape "
            f"{tuple(value.shape)} with requires_grad={value.requires_grad}. Average over the batch, and do not detach."
        )
    return value


def mean_loss(model: nn.Module, batches: Iterable[Any], loss: Loss) -> float:
    """Return the mean loss over the samples of all batches.

    Args:
        model: Network in the mode to judge.
        batches: Batches as for `loss_of`.
        loss: `loss(model, batch) -> scalar`.
    """
    total, samples = 0.0, 0
    with torch.enable_grad():  # `loss_of` requires a loss with gradients
        for batch in batches:
            n = as_inputs(batch).n_samples
            total += n * float(loss_of(model, batch, loss).detach())
            samples += n
    return total / samples


@contextmanager
def trainable(parameters: Sequence[Parameter]) -> Iterator[None]:
    """Let gradients flow to parameters, also frozen ones, inside a `with` block."""
    flags = [p.requires_grad for p in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, flag in zip(parameters, flags, strict=True):
            parameter.requires_grad_(flag)


def supervised_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return the cross-entropy of a labelled batch, or the loss returned by a transformers model.

    Args:
        model: Network with logits as output, `(N, classes)` or `(N, classes, ...)`.
        batch: Tuple (input, labels, ...), labels as integers or as probabilities, or a mapping with `labels`.

    Raises:
        ValueError: If there are no labels, or the labels do not fit the logits.
    """
    if isinstance(batch, Mapping) and "labels" in batch and _takes_labels(model):
        output = model(**batch)
        if isinstance(getattr(output, "loss", None), Tensor):
            return output.loss  # type: ignore[no-any-return]
    try:
        inputs, labels = split_labels(batch)
    except TypeError:
        raise ValueError(
            f"Expected labelled batches, tuples (input, labels) or mappings with 'labels', but got "
            f"{type(batch).__name__}. Pass loss=f(model, batch) if the loss is computed otherwise."
        ) from None
    logits = predictions_of(call(model, as_inputs(inputs)))
    fits = labels.shape == logits.shape or labels.shape == (logits.shape[0], *logits.shape[2:])
    if not fits:
        raise ValueError(
            f"Expected labels that fit logits of shape {tuple(logits.shape)}, but got shape {tuple(labels.shape)}. "
            "Pass loss=f(model, batch)."
        )
    return F.cross_entropy(logits, _checked(labels, logits))


def token_log_likelihoods(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed log-likelihood of the labels of each row, `(N,)`, and the number of scored tokens, `(N,)`.

    Args:
        logits: Logits, `(N, T, V)`; position t predicts the token at t + 1.
        labels: Labels, `(N, T)`, -100 for tokens without a score.
    """
    told, wanted = logits[:, :-1], labels[:, 1:]
    scored = wanted != IGNORED
    row = scored.nonzero()[:, 0]
    logs = -F.cross_entropy(told[scored].float(), wanted[scored], reduction="none")
    sums = torch.zeros(len(labels), device=logs.device).index_add(0, row, logs)
    return sums, scored.sum(1)


def text_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return the cross-entropy of each token of texts given the tokens before, averaged over the tokens.

    Args:
        model: Causal language model; see `reads_text`.
        batch: Batch of token numbers, `(N, T)`, perhaps with an `attention_mask`.
    """
    inputs = as_inputs(without_labels(batch, model))
    tokens = _tokens(inputs)
    assert tokens is not None, "see reads_text"
    labels = tokens.masked_fill(is_padding(inputs, tokens), IGNORED)
    sums, scored = token_log_likelihoods(logits_of(call(model, inputs)), labels)
    return sums.sum().neg() / scored.sum().clamp_min(1)


def reads_text(model: nn.Module, inputs: ModelInputs, output: object) -> bool:
    """Whether a model of transformers generates text, and gives logits for each of the input's tokens."""
    model = unwrap(model)
    generates = bool(getattr(model, "can_generate", bool)())
    encodes = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    tokens = _tokens(inputs)
    if not generates or encodes or tokens is None or not isinstance(output, Tensor):
        return False
    return output.ndim == 3 and output.shape[:2] == tokens.shape


def _tokens(inputs: ModelInputs) -> Tensor | None:
    """Return the token numbers among inputs, `(N, T)`; None without any."""
    found = inputs.kwargs.get("input_ids", inputs.args[0] if inputs.args else None)
    is_text = isinstance(found, Tensor) and found.ndim == 2 and not found.is_floating_point()
    return found if is_text else None


def _checked(labels: Tensor, logits: Tensor) -> Tensor:
    """Return labels of the type for cross-entropy; raise ValueError for a wrong label or type."""
    if labels.shape == logits.shape:
        return labels.to(logits.dtype)
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"Expected labels as integers, but got {labels.dtype}. Convert them in your loader, or pass "
            "loss=f(model, batch)."
        )
    labels, classes = labels.long(), logits.shape[1]
    wrong = labels[(labels != IGNORED) & ((labels < 0) | (labels >= classes))]
    if wrong.numel():
        raise ValueError(
            f"Expected labels from 0 to {classes - 1}, as the model has {classes} outputs, but got {int(wrong[0])}. Is "
            "it the model of this task?"
        )
    return labels


def _takes_labels(model: nn.Module) -> bool:
    parameters = inspect.signature(model.forward).parameters.values()
    return any(parameter.name == "labels" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
