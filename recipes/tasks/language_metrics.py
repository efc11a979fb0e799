"""Perplexity of a language model over tokens, correct also on several processes."""

from __future__ import annotations

from torch import Tensor
from torchmetrics import MeanMetric


class MeanPerplexity(MeanMetric):
    """Perplexity of all tokens, exp(mean loss), from the mean loss of each batch and its number of tokens.

    torchmetrics' `Perplexity` needs all probabilities at once, `(N, T, V)`, which the models' loss never computes.
    """

    def compute(self) -> Tensor:
        """Return exp(mean)."""
        return super().compute().exp()
