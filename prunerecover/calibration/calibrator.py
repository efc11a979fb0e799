"""Choose what removed units leave behind, by the effect on the model's output on held-out calibration samples.

One walk through the model, block by block, keeps the pruned model's hidden states on the fitting and the held-out
samples, and the dense model's on the fitting samples. Every unit is fitted on the already pruned model, towards the
dense model's hidden states, and judged by the output of the whole model. Never by its local fit: a token-wise
least-squares fit of an attention is better locally than zero, and worse for the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from prunerecover.calibration.candidates import Candidate, Fit, fit_of, named_candidate
from prunerecover.calibration.divergence import mean_divergence
from prunerecover.calibration.token_weights import token_weights
from prunerecover.display.progress import progress
from prunerecover.families.describe import describe
from prunerecover.model.batches import CalibrationSet, ModelInputs, without_padding
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.copies import share_copy
from prunerecover.model.hooks import recording
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Remove, Replace
from prunerecover.plan.kinds import KINDS, TRAITS
from prunerecover.plan.units import Unit
from prunerecover.surgery.apply_edits import temporarily_applied

REPLACEMENTS = ("calibrated", "zero", "identity")
Hidden = list[Tensor | None]


@dataclass(frozen=True)
class Choice:
    """The stand-in chosen for a unit, and the output divergence on held-out samples with it in place."""

    unit: Unit
    candidate: Candidate
    divergence: float


@dataclass
class _HiddenStates:
    """Hidden states that enter block number `at`, per batch; None enters the first.

    Attributes:
        fit: Of the pruned model on the fitting samples.
        dense: Of the dense model on the same.
        held_out: Of the pruned model on the held-out samples.
        same: Whether the pruned model is still the dense one up to here.
        after_fit: What leaves the block, where it has been run already; emptied when the block changes.
        after_dense: The same of the dense model.
    """

    fit: Hidden
    dense: Hidden
    held_out: Hidden
    same: bool
    at: int = 0
    after_fit: Hidden = field(default_factory=list)
    after_dense: Hidden = field(default_factory=list)


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
        self.model, self.samples, self.replace, self.seed = model, samples, replace, seed
        self.layout = describe(model)
        self.runner = BlockRunner(model, self.layout.container)
        self.dense_outputs = [without_padding(self.runner.finish(b, 0, None), b) for b in samples.held_out]
        self.fits = replace == "calibrated" and samples.enough and any(TRAITS[u.kind].fitted for u in units)
        if self.fits:
            self._dense = BlockRunner(share_copy(model), self.layout.container)
            self._weights = token_weights(self.runner, samples.fit, seed)

    def score(self, units: Sequence[Unit], present: Sequence[Choice] = ()) -> dict[str, Choice]:
        """Fit and judge each unit alone, on top of the `present` choices: the best stand-in and its divergence."""
        scores: dict[str, Choice] = {}
        front = self._front(same=not present)
        with ExitStack() as stack, progress("ranking units", len(units)) as advance:
            for choice in present:
                stack.enter_context(self._in_place(choice.candidate))
            for index, here in self._by_block(units):
                self._advance(front, index)
                fits = self._pass(index, front, here)
                for unit in here:
                    scores[unit.name] = self._best(index, front, unit, fits)
                    advance()
        return scores

    def judge(self, stand_ins: Mapping[Unit, Candidate], present: Sequence[Candidate] = ()) -> dict[str, float]:
        """Return the divergence with each stand-in alone, on top of the `present` ones; nothing is fitted.

        Args:
            stand_ins: What units leave.
            present: What others leave.
        """
        found: dict[str, float] = {}
        batches, at = self.samples.held_out, 0
        hidden: Hidden = [None] * len(batches)
        with ExitStack() as stack, progress("ranking units", len(stand_ins)) as advance:
            for candidate in present:
                stack.enter_context(self._in_place(candidate))
            for index, here in self._by_block(list(stand_ins)):
                hidden, at = _moved(self.runner, batches, at, index, hidden, []), index
                for unit in here:
                    with self._in_place(stand_ins[unit]):
                        found[unit.name] = self._divergence(index, hidden)
                    advance()
        return found

    def choose(
        self, units: Sequence[Unit], leaves: Mapping[str, str] | None = None, known: Sequence[Choice] = ()
    ) -> list[Choice]:
        """Fit stand-ins for all `units` in order of depth, each on the model pruned so far.

        Args:
            units: What is removed.
            leaves: What each unit has to leave, by unit name; None: the best.
            known: What this returned for some of the units. Those before the first unknown one are not fitted again.
        """
        kept = {choice.unit.name: choice for choice in known}
        chosen: list[Choice] = []
        front = self._front(same=True)
        with ExitStack() as stack, progress("fitting what units leave", len(units)) as advance:
            for index, here in self._by_block(units):
                self._advance(front, index)
                for unit in here:
                    if unit.name not in kept:
                        kept.clear()
                    choice = kept.get(unit.name) or self._fitted(index, front, unit, leaves)
                    stack.enter_context(self._in_place(choice.candidate))
                    front.same, front.after_fit = False, []
                    chosen.append(choice)
                    advance()
        return chosen

    def _fitted(self, index: int, front: _HiddenStates, unit: Unit, leaves: Mapping[str, str] | None) -> Choice:
        fits = self._pass(index, front, [unit])
        return self._best(index, front, unit, fits, None if leaves is None else leaves[unit.name])

    def _front(self, same: bool) -> _HiddenStates:
        n = len(self.samples.fit)
        return _HiddenStates([None] * n, [None] * n, [None] * len(self.samples.held_out), same)

    def _by_block(self, units: Sequence[Unit]) -> Iterator[tuple[int, list[Unit]]]:
        """Yield each block that holds a unit, with its units in the order in which they go."""
        homes = {u.name: self.layout.block_of(u.name) for u in units}
        for index in sorted(set(homes.values())):
            yield index, sorted((u for u in units if homes[u.name] == index), key=lambda u: KINDS.index(u.kind))

    def _pass(self, index: int, front: _HiddenStates, units: Sequence[Unit]) -> dict[str, Fit]:
        """Run one block on the fitting samples, dense and pruned, and sum up what the units' fits need."""
        if not self.fits:
            return {}
        block = self.layout.blocks[index]
        fits = {u.name: fit_of(self.model, block, u) for u in units if TRAITS[u.kind].fitted}
        targets = {path for f in fits.values() for path in (*f.branch.before, f.branch.last)}
        paths = {path for f in fits.values() for path in f.paths}
        front.after_fit, front.after_dense = [], []
        for i, batch in enumerate(self.samples.fit):
            seen, out = _watched(self._dense, index, batch, front.dense[i], targets | paths)
            after = {f.branch.kind: f.branch.state_after(seen) for f in fits.values()}
            front.after_dense.append(out)
            if not front.same:
                seen, out = _watched(self.runner, index, batch, front.fit[i], paths)
            front.after_fit.append(out)
            for fit in fits.values():
                fit.add(seen, after[fit.branch.kind], self._weights[index][i])
        return fits

    def _advance(self, front: _HiddenStates, to: int) -> None:
        """Move the front on to block `to`; what `_pass` has left is not computed again."""
        if to == front.at:
            return
        if self.fits:
            front.dense = _moved(self._dense, self.samples.fit, front.at, to, front.dense, front.after_dense)
            if front.same:
                front.fit = front.dense
            else:
                front.fit = _moved(self.runner, self.samples.fit, front.at, to, front.fit, front.after_fit)
        front.held_out = _moved(self.runner, self.samples.held_out, front.at, to, front.held_out, [])
        front.at, front.after_fit, front.after_dense = to, [], []

    def _best(
        self, index: int, front: _HiddenStates, unit: Unit, fits: Mapping[str, Fit], leaves: str | None = None
    ) -> Choice:
        """Return the candidate of least output divergence; ties go to the first."""
        choices = []
        for candidate in self._candidates(index, unit, fits, leaves):
            with self._in_place(candidate):
                choices.append(Choice(unit, candidate, self._divergence(index, front.held_out)))
        return min(choices, key=lambda choice: choice.divergence)

    def _candidates(self, index: int, unit: Unit, fits: Mapping[str, Fit], leaves: str | None) -> list[Candidate]:
        forward = self.layout.blocks[index].feed_forward
        if leaves in ("zero", "identity"):
            return [named_candidate(self.model, unit, leaves, forward)]
        if unit.name not in fits and leaves is None:
            return [
                named_candidate(self.model, unit, self.replace if self.replace != "calibrated" else "zero", forward)
            ]
        fitted = fits[unit.name].candidates() if unit.name in fits else []
        found = [candidate for candidate in fitted if leaves in (None, candidate.leaves)]
        if not found:
            raise ValueError(
                f"Expected something that '{unit.name}' ({unit.kind}) can leave, but '{leaves}' cannot be fitted on "
                f"{self.samples.n_samples} samples. Pass at least 8, or use replace='zero'."
            )
        return found

    def _divergence(self, start: int, hidden: Hidden) -> float:
        """Mean output divergence over the held-out samples, run from block `start` on."""
        batches = self.samples.held_out
        found = (self.runner.finish(batch, start, state) for batch, state in zip(batches, hidden, strict=True))
        return mean_divergence(batches, self.dense_outputs, found)

    @contextmanager
    def _in_place(self, candidate: Candidate) -> Iterator[None]:
        """Have a stand-in in the model inside a `with` block. Removed blocks are skipped, so that no path changes."""
        edit = candidate.edit
        if isinstance(edit, Remove) and edit.kind == "block":
            with self.runner.skipping([self.layout.block_of(edit.unit)]):
                yield
            return
        if isinstance(edit, Replace):
            edit = edit.model_copy(update={"tensors": tuple(candidate.values)})
        with temporarily_applied(self.model, edit, candidate.values):
            yield


def _moved(
    runner: BlockRunner, batches: Sequence[ModelInputs], start: int, stop: int, hidden: Hidden, after: Hidden
) -> Hidden:
    """Return what enters block `stop`, given what enters `start` and, if it is known, what leaves it."""
    if after:
        start, hidden = start + 1, after
    if start == stop:
        return hidden
    return [runner.advance(b, start, h, stop) for b, h in zip(batches, hidden, strict=True)]


def _watched(
    runner: BlockRunner, index: int, batch: ModelInputs, hidden: Tensor | None, paths: set[str]
) -> tuple[dict[str, Tensor], Tensor]:
    with recording({path: get_module(runner.model, path) for path in paths}) as seen:
        out = runner.advance(batch, index, hidden, index + 1)
    return seen, out
