"""Classes for the U-Score of language models, with labels per token rather than per sample.

A batch's labels of shape `(N, T)` give every token a class. Labels of more than `TOKEN_CLASSES` values, such as the ids
of a vocabulary, are joined with their neighbours to about equally frequent classes. Tokenizers number by frequency: the
classes tell frequent from rare tokens. Negative labels (-100) are no class. The output of an expert for a class is
averaged over the tokens of the class in each sample.

For another distinction, such as the source of each sample, pass `labels=`, a function that returns `(N,)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TOKEN_CLASSES = 8


@dataclass(frozen=True)
class Observations:
    """Observations of an expert: samples, or the tokens of a class in a sample.

    Attributes:
        classes: Class of each observation, `(observations,)`.
        of_token: Number of each token's observation in the batch, `(N * T,)`, -1 for none; None: the token's sample.
    """

    classes: Tensor
    of_token: Tensor | None = None


def observations(labels: Tensor) -> Observations:
    """Return the observations of a batch from its labels, `(N,)` or `(N, T)`.

    >>> observations(torch.tensor([[3, 3, 5], [3, -100, 3]]))
    Observations(classes=tensor([3, 5, 3]), of_token=tensor([ 0,  0,  1,  2, -1,  2]))
    """
    if labels.ndim == 1:
        return Observations(labels)
    sample = torch.arange(len(labels))[:, None].expand_as(labels)
    pairs = torch.stack([sample.flatten(), labels.flatten()])
    counted = pairs[1] >= 0
    found, number = torch.unique(pairs[:, counted], dim=1, return_inverse=True)
    of_token = torch.full_like(pairs[1], -1)
    of_token[counted] = number
    return Observations(found[1], of_token)


def with_few_classes(labels_of: Callable[[Any], Tensor], batches: Sequence[Any]) -> Callable[[Any], Tensor]:
    """Join neighbouring labels of tokens if there are many values; labels of samples stay unchanged.

    Args:
        labels_of: `labels_of(batch) -> (N,)` or `(N, T)`.
        batches: All batches with labels to read.
    """
    if not batches or labels_of(batches[0]).ndim != 2:
        return labels_of
    values = torch.cat([labels_of(batch).detach().cpu().flatten() for batch in batches])
    values = values[values >= 0].sort().values
    if int((values.diff() > 0).sum()) < TOKEN_CLASSES:
        return labels_of
    edges = values[torch.arange(1, TOKEN_CLASSES) * len(values) // TOKEN_CLASSES]

    def joined(batch: Any) -> Tensor:
        labels = labels_of(batch).detach().cpu()
        return torch.where(labels < 0, -1, torch.bucketize(labels, edges, right=True))

    return joined
