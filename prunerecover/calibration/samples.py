"""Calibration samples: a part to fit on, a part to judge on, and others to learn from where a few are too few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from prunerecover.model.batches import Batches, ModelInputs, as_inputs, listed, with_samples

MIN_SAMPLES = 8


@dataclass(frozen=True)
class CalibrationSet:
    """Calibration samples in two parts: `fit` estimates replacements, `held_out` judges replacements.

    Attributes:
        fit: Samples to fit on.
        held_out: Samples to judge on.
        n_samples: Number of different samples in both parts together.
        whole: All samples, in the original batches.
        further: Function from a number of samples to about so many others, to learn from.
    """

    fit: tuple[ModelInputs, ...]
    held_out: tuple[ModelInputs, ...]
    n_samples: int
    whole: tuple[ModelInputs, ...]
    further: Callable[[int], Sequence[ModelInputs]] = field(default=lambda _: (), compare=False)

    @property
    def all_samples(self) -> tuple[ModelInputs, ...]:
        """All samples once: the samples of `fit`, and of `held_out` unless both parts are the same."""
        return (*self.fit, *self.held_out) if self.enough else self.held_out

    @property
    def enough(self) -> bool:
        """Whether there are enough samples for any fit (at least 8)."""
        return self.n_samples >= MIN_SAMPLES


def split_batches(batches: Batches, device: torch.device, seed: int = 0) -> CalibrationSet:
    """Hold out every 4th sample.

    With fewer than 8 samples, too few for any fit, both parts are all the samples.

    Args:
        batches: Batches in any form of `as_inputs`; read once.
        device: Device of the samples.
        seed: Offset of the held-out samples: (index + seed) modulo 4 equal to 3, counted from 0 over all batches.

    Raises:
        ValueError: If there is no batch, or a batch without samples.
    """
    inputs = [as_inputs(b).to(device) for b in with_samples(listed(batches))]
    total = sum(b.n_samples for b in inputs)
    if total < MIN_SAMPLES:
        return CalibrationSet(tuple(inputs), tuple(inputs), total, tuple(inputs))
    fit, held_out, seen = [], [], 0
    for batch in inputs:
        index = torch.arange(seen, seen + batch.n_samples)
        chosen = (index + seed) % 4 == 3
        seen += batch.n_samples
        if (~chosen).any():
            fit.append(batch.select((~chosen).nonzero().flatten()))
        if chosen.any():
            held_out.append(batch.select(chosen.nonzero().flatten()))
    return CalibrationSet(tuple(fit), tuple(held_out), total, tuple(inputs))
