"""Choose what removed units leave behind, by the effect on the model's output on held-out calibration samples.

One walk through the model, block by block, keeps the pruned model's hidden states on the fitting and the held-out samples,
and the dense model's on the fitting samples. Every unit is fitted on the already pruned model, towards the dense model's
hidden states, and judged by the output of the whole model. Never by its local fit: a token-wise least-squares fit of an
attention is better locally than zero, and worse for the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from prunerecover.batches import CalibrationSet, ModelInputs, without_padding
from prunerecover.candidates import Candidate, Fit, fit_of, named_candidate
from prunerecover.copies import twin_of
from prunerecover.divergence import output_divergence
from prunerecover.edits import Remove, Replace
from prunerecover.families import Block, Branch, describe
from prunerecover.prefix import BlockRunner, recording, skipping
from prunerecover.sensitivity import token_weights
from prunerecover.structure import get_module
from prunerecover.surgery import applied_for_now
from prunerecover.units import Unit

REPLACEMENTS = ("calibrated", "zero", "identity")
FITTED = ("attention", "mlp", "activation")
ORDER = {"block": 0, "attention": 1, "mlp": 2, "activation": 3}
Hidden = list[Tensor | None]


@dataclass(frozen=True)
class Choice:
    """The stand-in chosen for a unit, and the output divergence on held-out samples with it in place."""

    unit: Unit
    candidate: Candidate
    divergence: float


@dataclass
class _Front:
    """Hidden states that enter one block, per batch; None enters the first.

    Attributes:
        fit: Of the pruned model on the fitting samples.
        dense: Of the dense model on the same.
        held_out: Of the pruned model on the held-out samples.
        same: Whether the pruned model is still the dense one up to here.
    """

    fit: Hidden
    dense: Hidden
    held_out: Hidden
    same: bool


class Calibrator:
    """Fits and judges stand-ins on one model, in evaluation mode; the model is as before after each method.

    Args:
        model: Unwrapped.
        samples: Split calibration samples.
        units: All units that may be asked for.
        replace: "calibrated", "zero" or "identity".
        seed: For the labels drawn by `token_weights`.
    """

    def __init__(
        self, model: nn.Module, samples: CalibrationSet, units: Sequence[Unit], replace: str, seed: int = 0
    ) -> None:
        self.model, self.samples, self.replace = model, samples, replace
        self.layout = describe(model)
        self.runner = BlockRunner(model, self.layout.container)
        self.dense_outputs = [without_padding(self.runner.finish(b, 0, None), b) for b in samples.held_out]
        self.fits = replace == "calibrated" and samples.enough and any(u.kind in FITTED for u in units)
        if self.fits:
            self._dense = BlockRunner(twin_of(model), self.layout.container)
            self._weights = token_weights(self.runner, samples.fit, seed)

    def score(self, units: Sequence[Unit], present: Sequence[Choice] = ()) -> dict[str, Choice]:
        """Judge each unit alone, on top of the `present` choices: the best stand-in and its divergence."""
        scores: dict[str, Choice] = {}
        front = self._front(same=not present)
        with ExitStack() as stack:
            for choice in present:
                stack.enter_context(self._in_place(choice.candidate))
            for index, here in self._by_block(units):
                fits = self._pass(index, front, here)
                for unit in here:
                    scores[unit.name] = self._best(index, front, unit, fits)
                self._advance(index, front)
        return scores

    def choose(self, units: Sequence[Unit], leaves: Mapping[str, str] | None = None) -> list[Choice]:
        """Fit stand-ins for all `units` in order of depth, each on the model pruned so far.

        Args:
            units: What is removed.
            leaves: What each unit has to leave, by unit name; None: the best.
        """
        chosen: list[Choice] = []
        front = self._front(same=True)
        with ExitStack() as stack:
            for index, here in self._by_block(units):
                for unit in here:
                    fits = self._pass(index, front, [unit])
                    choice = self._best(index, front, unit, fits, None if leaves is None else leaves[unit.name])
                    stack.enter_context(self._in_place(choice.candidate))
                    front.same = False
                    chosen.append(choice)
                self._advance(index, front)
        return chosen
