"""Rows of a batch for different sets: checked, taken apart, and put together again in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def check_tokens(input_ids: object, mask: Tensor | None = None, context: int | None = None) -> Tensor:
    """Return the tokens of prompts, `(N, T)`.

    Args:
        input_ids: Tokens as given.
        mask: Mask, `(N, T)`, 0 for padding, or None.
        context: Maximum number of tokens of the model; None: unknown.

    Raises:
        TypeError: If `input_ids` is no tensor.
        ValueError: If there is no prompt, or a prompt is empty or longer than the context.
    """
    if not isinstance(input_ids, Tensor):
        raise TypeError(
            f"Expected tokens of prompts as a tensor, (N, T), but got {type(input_ids).__name__}. Pass "
            "tokenizer(texts, return_tensors='pt', padding=True)['input_ids']."
        )
    if input_ids.ndim != 2 or not input_ids.numel():
        raise ValueError(
            "Expected tokens of prompts, (N, T), of one prompt or more, but got shape "
            f"{tuple(input_ids.shape)}. A single prompt is input_ids[None]."
        )
    if mask is not None:
        _check_mask(input_ids, mask)
    longest = input_ids.shape[1] if mask is None else int(mask.bool().sum(1).max())
    if context is not None and longest > context:
        raise ValueError(f"Expected prompts of at most {context} tokens, the model's context, but got {longest}.")
    return input_ids


def _check_mask(input_ids: Tensor, mask: Tensor) -> None:
    if mask.shape != input_ids.shape:
        raise ValueError(
            f"Expected a mask of shape {tuple(input_ids.shape)}, as the tokens have, but got {tuple(mask.shape)}."
        )
    if not mask.any(1).all():
        first = int((~mask.any(1)).nonzero()[0])
        raise ValueError(f"Expected prompts of one token or more, but number {first} is empty. Leave it out.")


def of_rows(arguments: Mapping[str, Any], rows: Sequence[int], count: int) -> dict[str, Any]:
    """Return the arguments of a model for some samples of a batch: tensors with a row per sample are cut.

    Args:
        arguments: Arguments by name; arguments without a row per sample are unchanged.
        rows: Numbers of the samples.
        count: Number of samples in the batch.
    """

    def cut(value: Any) -> Any:
        with_rows = isinstance(value, Tensor) and value.ndim > 1 and len(value) == count
        return value[list(rows)] if with_rows else value

    return {name: cut(value) for name, value in arguments.items()}


def in_order(found: Mapping[tuple[int, ...], Tensor], fill: int = 0) -> Tensor:
    """Return the results for groups of rows as a batch, in the order of the rows; shorter results are padded.

    Args:
        found: Results by the numbers of the rows, equally many per row: `(rows x results, T, ...)`.
        fill: Value for the padding at the end of dimension 1.
    """
    longest = max(part.shape[1] for part in found.values())
    by_row: dict[int, Tensor] = {}
    for rows, part in found.items():
        padding = (0, 0) * (part.ndim - 2) + (0, longest - part.shape[1])
        by_row |= zip(rows, torch.unflatten(F.pad(part, padding, value=fill), 0, (len(rows), -1)), strict=True)
    return torch.cat([by_row[row] for row in sorted(by_row)])


def padding_token(given: Mapping[str, Any], model: Any) -> int:
    """Return the padding token of shorter answers, from the arguments of `generate` or else from the model."""
    sources = (given.get("generation_config"), getattr(model, "generation_config", None), model.config)
    for name in ("pad_token_id", "eos_token_id"):
        values = (given.get(name), *(getattr(source, name, None) for source in sources))
        found = next((value for value in values if value is not None), None)
        if found is not None:
            return int(torch.as_tensor(found).flatten()[0])
    return 0
