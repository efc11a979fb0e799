"""Choice of the replacement of each removed unit, by the output divergence on held-out calibration samples.

A walk through the model, block by block, keeps hidden states while there is room: the pruned model's on the fitting and
the held-out samples, the dense model's on the fitting samples. Every unit is fitted on the already pruned model,
towards the dense model's hidden states, and judged by the output of the whole model. The local error would mislead: a
token-wise least-squares fit of an attention has a lower local error than zero, and makes the model worse.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import cached_property

from torch import nn

from prunerecover.calibration.candidates import Candidate, Choice, Fit, Form, fit_of, named_candidate
from prunerecover.calibration.held_out import Cost, HeldOut, Terms
from prunerecover.calibration.hidden_states import Hidden, HiddenStates, keep, moved_on, run_watched
from prunerecover.calibration.in_place import first_changed, in_place
from prunerecover.calibration.order import by_block, in_order, start_of
from prunerecover.calibration.run_maps import RunFit
from prunerecover.calibration.token_weights import TokenWeights, token_weights
from prunerecover.calibration.tuning import tuned
from prunerecover.display.progress import progress
from prunerecover.families.describe import describe
from prunerecover.model.batches import MIN_SAMPLES, CalibrationSet
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.copies import share_copy
from prunerecover.plan.kinds import TRAITS
from prunerecover.plan.units import Unit

REPLACEMENTS = ("calibrated", "zero", "identity")


class Calibrator:
    """Fits and judges replacements on a model, in evaluation mode; each method leaves the model unchanged.

    Args:
        model: Model, unwrapped.
        samples: Split calibration samples.
        units: All units of later calls.
        replace: "calibrated", "zero" or "identity".
        seed: Seed of the labels drawn by `token_weights`.
    """

    def __init__(
        self, model: nn.Module, samples: CalibrationSet, units: Sequence[Unit], replace: str, seed: int = 0
    ) -> None:
        self.model, self.samples, self.replace, self.seed = model, samples, replace, seed
        self.layout = describe(model)
        self.runner = BlockRunner(model, self.layout.container)
        self._dense = BlockRunner(share_copy(model), self.layout.container)
        self._held_out = HeldOut(self.runner, self._dense, samples.held_out)
        asked = replace == "calibrated" and any(TRAITS[u.kind].fitted for u in units)
        self.fits = asked and samples.enough
        if asked and not samples.enough:
            warnings.warn(
                f"Only {samples.n_samples} calibration samples (fewer than {MIN_SAMPLES}): removed units leave zero "
                "instead of a fit.",
                stacklevel=5,
            )

    @cached_property
    def _weights(self) -> TokenWeights:
        """Token weights of each block's output, for each fitting batch."""
        return token_weights(self._dense, self.samples.fit, self.seed)

    def score(self, units: Sequence[Unit], present: Sequence[Choice] = ()) -> dict[str, Choice]:
        """Fit and judge each unit alone, on top of the `present` choices: the best replacement, and the divergence.

        Blocks may leave a map only if other units are fitted too and no choice is present.
        """
        scores: dict[str, Choice] = {}
        front = self._front(same=not present, fitting=any(unit.kind != "block" for unit in units))
        maps = {unit.name: unit.kind == "block" and front.fitting and not present for unit in units}
        with ExitStack() as stack, progress("ranking units", len(units)) as advance:
            for choice in present:
                stack.enter_context(self._in_place(choice.candidate))
            for index, here in by_block(units, lambda unit: start_of(self.layout, unit, maps[unit.name])):
                self._advance(front, index)
                fits = self._pass(index, front, here)
                for unit in here:
                    alone = maps[unit.name]
                    found = self._of_run(front, [unit], None) if alone else self._candidates(index, unit, fits, None)
                    scores[unit.name] = self._best(front, unit, found)
                    advance()
        return scores

    def judge(self, stand_ins: Mapping[Unit, Candidate], present: Sequence[Candidate] = ()) -> dict[str, float]:
        """Return the divergence with each replacement alone, on top of the `present` replacements; fit nothing.

        Args:
            stand_ins: Replacements to judge, by unit.
            present: Replacements already in the model.
        """
        found: dict[str, float] = {}
        batches, at = self.samples.held_out, 0
        hidden: Hidden = [None] * len(batches)
        with ExitStack() as stack, progress("ranking units", len(stand_ins)) as advance:
            for candidate in present:
                stack.enter_context(self._in_place(candidate))
            for index, here in by_block(list(stand_ins), lambda unit: first_changed(self.layout, stand_ins[unit])):
                hidden, at = moved_on(self.runner, batches, at, index, hidden, []), index
                for unit in here:
                    with self._in_place(stand_ins[unit]):
                        found[unit.name] = self._held_out.divergence(index, hidden)
                    advance()
        return found

    def race(
        self,
        stand_ins: Mapping[Unit, Candidate],
        present: Sequence[Candidate],
        cost: Cost,
        bounds: Sequence[float] | None = None,
        terms: Mapping[str, Terms] | None = None,
    ) -> dict[str, tuple[float, bool]]:
        """Return the divergence with each replacement alone, computed only as far as needed to find the cheapest.

        Args:
            stand_ins: Replacements to judge, by unit.
            present: Replacements already in the model.
            cost: Cost of an entrant, by index in `stand_ins` and divergence; see `HeldOut.race`.
            bounds: Lower bounds of the costs, in the order of `stand_ins`.
            terms: Terms from earlier races on top of the same units, by unit.

        Returns:
            The divergence by unit, and a flag: True if all batches were run.
        """
        units = list(stand_ins)
        starts = [first_changed(self.layout, stand_ins[unit]) for unit in units]
        with ExitStack() as stack:
            for candidate in present:
                stack.enter_context(self._in_place(candidate))
            found = self._held_out.race(
                starts,
                lambda number: self._in_place(stand_ins[units[number]]),
                cost,
                bounds=bounds,
                terms=None if terms is None else [terms[unit.name] for unit in units],
            )
        return {unit.name: one for unit, one in zip(units, found, strict=True)}

    def bare(self, unit: Unit) -> Candidate | None:
        """Return the replacement of a unit removed alone, or None if values have to be fitted."""
        if self.fits and unit.kind != "block":
            return None
        return self._candidates(self.layout.block_of(unit.name), unit, {}, None)[0]

    def choose(
        self, units: Sequence[Unit], forms: Mapping[str, Form] | None = None, known: Sequence[Choice] = ()
    ) -> list[Choice]:
        """Fit replacements for all `units` in order of depth, each on the model pruned so far.

        Args:
            units: Units to remove.
            forms: Form of each unit's replacement, by unit name; None: the best form.
            known: Choices from an earlier call for some of the units; those before the first unknown unit are not
                fitted again.
        """
        kept = {choice.unit.name: choice for choice in known}
        chosen: list[Choice] = []
        front = self._front(same=True)
        with ExitStack() as stack, progress("fitting what units leave", len(units)) as advance:
            for index, together in in_order(self.layout, units, self.fits):
                self._advance(front, index)
                if any(unit.name not in kept for unit in together):
                    kept.clear()
                for choice in [kept[unit.name] for unit in together if kept] or self._fitted(front, together, forms):
                    stack.enter_context(self._in_place(choice.candidate))
                    chosen.append(choice)
                    advance()
                front.same, front.after_fit = False, []
        return chosen

    def finished(self, choices: Sequence[Choice]) -> list[Choice]:
        """Return choices of the same forms, tuned; if one is a map, first fitted again on all samples.

        Args:
            choices: Choices from `choose`; the divergences from held-out samples stay.
        """
        if all(choice.candidate.fold is None for choice in choices):
            return self.tuned(choices)
        samples = replace(self.samples, fit=self.samples.all_samples, held_out=())
        forms = {choice.unit.name: Form(choice.candidate.leaves, choice.candidate.ridge) for choice in choices}
        again = Calibrator(self.model, samples, [choice.unit for choice in choices], self.replace, self.seed)
        found = {choice.unit.name: choice.candidate for choice in again.choose([c.unit for c in choices], forms)}
        tuned = self.tuned([replace(choice, candidate=found[choice.unit.name]) for choice in choices])
        return [replace(one, divergence=choice.divergence) for one, choice in zip(tuned, choices, strict=True)]

    def tuned(self, choices: Sequence[Choice]) -> list[Choice]:
        """Return all choices of a plan with fitted values tuned on the output; see `tuning`."""
        if not self.fits:
            return list(choices)
        return tuned(self.runner, self._dense, self.layout, self.samples, self._held_out, choices)

    def _fitted(self, front: HiddenStates, together: Sequence[Unit], forms: Mapping[str, Form] | None) -> list[Choice]:
        """Choose the replacement of a run of blocks, or of another unit."""
        *inner, last = together
        wanted, index = None if forms is None else forms[last.name], front.at
        if last.kind != "block":
            return [self._best(front, last, self._candidates(index, last, self._pass(index, front, together), wanted))]
        choices = list[Choice]()
        with ExitStack() as stack:
            for unit in inner:
                choices.append(self._best(front, unit, [named_candidate(self.model, unit, "zero", None)]))
                stack.enter_context(self._in_place(choices[-1].candidate))
            return [*choices, self._best(front, last, self._of_run(front, together, wanted))]

    def _of_run(self, front: HiddenStates, run: Sequence[Unit], wanted: Form | None) -> list[Candidate]:
        """Return candidates for a run of blocks: zero, and maps folded into the block before the run."""
        first, last = (self.layout.block_of(unit.name) for unit in (run[0], run[-1]))
        bare = named_candidate(self.model, run[-1], "zero", None)
        if (wanted and wanted.leaves != "map") or not self.fits or first == 0:
            return [bare]
        fit = RunFit(self.model, describe(self.model).blocks[first - 1])
        for i, batch in enumerate(self.samples.fit):
            seen, out = run_watched(self.runner, front.at, batch, front.fit[i], set(fit.paths))
            if i == 0:
                fit.find_place(seen, out)
            if fit.reason:
                break
            target = self._dense.advance(batch, front.at, front.dense[i], last + 1)
            fit.add(seen, target, self._weights.of(last, i))
        maps = fit.candidates(run[-1])
        if wanted and not maps:
            raise ValueError(
                f"Expected a linear before '{run[0].name}' that a map can be folded into, but {fit.reason}. Plan anew "
                "for this model."
            )
        return maps if wanted else [bare, *maps]

    def _front(self, same: bool, fitting: bool = True) -> HiddenStates:
        n = len(self.samples.fit)
        held_out: Hidden = [None] * len(self.samples.held_out)
        return HiddenStates([None] * n, [None] * n, held_out, same, fitting=fitting and self.fits)

    def _pass(self, index: int, front: HiddenStates, units: Sequence[Unit]) -> dict[str, Fit]:
        """Run a block on the fitting samples, dense and pruned, and add up the sums for the units' fits."""
        if not front.fitting:
            return {}
        block = self.layout.blocks[index]
        fits = {u.name: fit_of(self.model, block, u) for u in units if u.kind != "block"}
        targets = {path for f in fits.values() for path in (*f.branch.before, f.branch.last)}
        paths = {path for f in fits.values() for path in f.paths}
        front.after_fit, front.after_dense = [], []
        for i, batch in enumerate(self.samples.fit):
            seen, out = run_watched(self._dense, index, batch, front.dense[i], targets | paths)
            after = {f.branch.kind: f.branch.state_after(seen) for f in fits.values()}
            keep(front.after_dense, out)
            if not front.same:
                seen, out = run_watched(self.runner, index, batch, front.fit[i], paths)
            keep(front.after_fit, out)
            for fit in fits.values():
                fit.add(seen, after[fit.branch.kind], self._weights.of(index, i))
        return fits

    def _advance(self, front: HiddenStates, to: int) -> None:
        """Move the front on to block `to`, starting from outputs kept by `_pass`."""
        if to == front.at:
            return
        if front.fitting:
            front.dense = moved_on(self._dense, self.samples.fit, front.at, to, front.dense, front.after_dense)
            if front.same:
                front.fit = front.dense
            else:
                front.fit = moved_on(self.runner, self.samples.fit, front.at, to, front.fit, front.after_fit)
        front.held_out = moved_on(self.runner, self.samples.held_out, front.at, to, front.held_out, [])
        front.at, front.after_fit, front.after_dense = to, [], []

    def _best(self, front: HiddenStates, unit: Unit, candidates: Sequence[Candidate]) -> Choice:
        """Return the candidate of least output divergence, chosen on a part of the samples; ties go to the first."""
        best, divergence = self._held_out.best_form(
            len(candidates), front.at, lambda number: self._in_place(candidates[number]), front.held_out
        )
        return Choice(unit, candidates[best], divergence)

    def _candidates(self, index: int, unit: Unit, fits: Mapping[str, Fit], form: Form | None) -> list[Candidate]:
        forward = self.layout.blocks[index].feed_forward
        if form and form.leaves in ("zero", "identity"):
            return [named_candidate(self.model, unit, form.leaves, forward)]
        if unit.name not in fits and form is None:
            leaves = "zero" if self.replace == "calibrated" else self.replace
            return [named_candidate(self.model, unit, leaves, forward)]
        fitted = fits[unit.name].candidates() if unit.name in fits else []
        found = [candidate for candidate in fitted if form is None or form.fits(candidate)]
        if not found:
            raise ValueError(
                f"Expected a possible replacement of '{unit.name}' ({unit.kind}), but '{form and form.leaves}' cannot "
                f"be fitted on {self.samples.n_samples} samples. Pass at least 8, or use replace='zero'."
            )
        return found

    def _in_place(self, candidate: Candidate) -> AbstractContextManager[None]:
        return in_place(self.runner, self.layout, candidate)
