"""The perplexity of a language model over tokens, right also on several processes."""

from __future__ import annotations

from torch import Tensor
from torchmetrics import MeanMetric


class MeanPerplexity(MeanMetric):
    """The perplexity of all tokens, exp(mean loss), from the mean loss of each batch and its number of tokens.

    torchmetrics' `Perplexity` wants all probabilities at once, `(N, T, V)`, which the models' own loss never makes.
    """

    def compute(self) -> Tensor:
        """Return exp(mean)."""
        return super().compute().exp()
