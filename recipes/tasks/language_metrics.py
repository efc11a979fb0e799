"""Metrics of language models over tokens and over questions, right also on several processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import MeanMetric, Metric
from torchmetrics.utilities import dim_zero_cat


class MeanPerplexity(MeanMetric):
    """The perplexity of all tokens, exp(mean loss), from the mean loss of each batch and its number of tokens.

    torchmetrics' `Perplexity` wants all probabilities at once, `(N, T, V)`, which the models' own loss never makes.
    """

    def compute(self) -> Tensor:
        """Return exp(mean)."""
        return super().compute().exp()


class MeanOverQuestions(Metric):
    """The mean of one value per question, each counted once: samplers of several processes give some to two of them.

    `MeanMetric` cannot know which values are the same question's.
    """

    full_state_update = False
    values: Any
    numbers: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("values", default=[], dist_reduce_fx="cat")
        self.add_state("numbers", default=[], dist_reduce_fx="cat")

    def update(self, values: Tensor, numbers: Tensor) -> None:
        """Add some questions.

        Args:
            values: Such as whether the answer is right, `(Q,)`.
            numbers: Of the questions in their data set, `(Q,)`.
        """
        self.values.append(values.float())
        self.numbers.append(numbers)

    def compute(self) -> Tensor:
        """Return the mean."""
        values, numbers = dim_zero_cat(self.values), dim_zero_cat(self.numbers)
        _, place = torch.unique(numbers, return_inverse=True)
        once = torch.empty(int(place.max()) + 1, device=values.device).scatter(0, place, values)
        return once.mean()
