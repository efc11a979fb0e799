"""Plan which blocks, attentions, MLPs and activations to remove, and what they leave."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.allocation import select
from prunerecover.batches import Batches, CalibrationSet, split_batches
from prunerecover.budget import Budget
from prunerecover.calibrated import REPLACEMENTS, Calibrator, Choice
from prunerecover.edits import Edit, Replace
from prunerecover.families import describe
from prunerecover.importance import IMPORTANCES, Request, check_scores
from prunerecover.merge import take_out_blocks
from prunerecover.observing import device_of, observing
from prunerecover.plan import Plan
from prunerecover.provenance import plan_for
from prunerecover.structure import unwrap
from prunerecover.surgery import check_source
from prunerecover.units import DEPTH_KINDS, Unit, find_units

SEARCHES = ("one_shot", "greedy")


def plan_depth(
    model: nn.Module,
    budget: Budget | None = None,
    *,
    remove: Mapping[str, int] | None = None,
    batches: Batches,
    importance: str = "output_divergence",
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
    replace: str = "calibrated",
    search: str = "one_shot",
    ignore: Sequence[str] = (),
    seed: int = 0,
) -> Plan:
    """Decide what to remove within a budget; the model is bit-identical afterwards.

    Args:
        model: A supported model (see `find_units`), wrapped or not.
        budget: How much goes.
        remove: Short for `Budget(remove=...)`: units per kind.
        batches: Calibration batches: tensors, tuples whose first element is the input, or mappings. No labels are read,
            except by importances that take a `loss`. Every 4th sample is held out to judge what was fitted to the others.
        importance: What ranks units within their kind: "output_divergence" (the default), "gate_gradient", "taylor",
            "magnitude", "angular_distance", "block_influence" or "random".
        loss: `loss(model, batch) -> scalar`, for "gate_gradient" and "taylor".
        replace: "calibrated" fits what is left and picks it by its effect on the output; "zero" and "identity" are there by
            name. Whole blocks always leave nothing.
        search: "one_shot" ranks once; "greedy" removes one unit at a time and ranks again on the pruned model
            (needs "output_divergence").
        ignore: Shell patterns of unit names that stay, such as "blocks.0.*".
        seed: Of the held-out split and of everything random.

    Returns:
        The plan, with the importance of every unit as evidence.

    Raises:
        ValueError: If the budget cannot be met, an argument is unknown, there are no batches, or importances are NaN.
    """
    model = unwrap(model)
    budget = _budget(budget, remove)
    _check(importance, replace, search, loss)
    batches = list(batches)
    samples = split_batches(batches, device_of(model), seed)
    with observing(model):
        kinds = [k for k in DEPTH_KINDS if k in budget.kinds(DEPTH_KINDS)]
        units = [u for u in _find(model, kinds, samples) if not any(fnmatch(u.name, p) for p in ignore)]
        calibrator = Calibrator(model, samples, units, replace, seed)
        request = Request(model, units, tuple(batches), calibrator, loss, seed)
        if search == "greedy":
            scores, chosen = _greedy(calibrator, units, budget)
        else:
            scores = IMPORTANCES[importance](request)
            check_scores(scores, importance)
            chosen = calibrator.choose(select(model, units, scores, budget, samples.held_out[0]))
        edits, tensors = edits_of(model, chosen)
    return plan_for(
        model,
        edits,
        method=f"depth/{importance}",
        arguments={"budget": budget.to_dict(), "replace": replace, "search": search, "ignore": list(ignore)},
        seed=seed,
        tensors=tensors,
        example=samples.held_out[0],
        evidence={"importance": scores, "samples": samples.n_samples, "divergence": [c.divergence for c in chosen]},
    )


def refit_plan(model: nn.Module, plan: Plan, batches: Batches, seed: int = 0) -> Plan:
    """Fit the tensors of a depth plan anew on other weights; units and what they leave stay.

    Raises:
        ValueError: If the model is not of the plan's structure or there are too few samples to fit.
    """
    model = unwrap(model)
    check_source(model, plan)
    fitted = [e for e in plan.edits if isinstance(e, Replace)]
    wanted = {edit.unit: edit for edit in fitted}
    samples = split_batches(batches, device_of(model), seed)
    with observing(model):
        units = [u for u in find_units(model) if u.name in wanted]
        calibrator = Calibrator(model, samples, units, "calibrated", seed)
        chosen = calibrator.choose(units, {name: edit.leaves for name, edit in wanted.items()})
    tensors = {
        key: choice.candidate.values[key.rpartition(".")[2]]
        for choice in chosen
        for key in wanted[choice.unit.name].tensors
    }
    return plan.with_tensors(tensors)


def edits_of(model: nn.Module, chosen: Sequence[Choice]) -> tuple[list[Edit], dict[str, Tensor]]:
    """Turn choices into sequential edits and their tensors; blocks go last, from the end."""
    edits: list[Edit] = []
    tensors: dict[str, Tensor] = {}
    blocks = []
    for choice in chosen:
        edit = choice.candidate.edit
        if choice.unit.kind == "block":
            blocks.append(describe(model).block_of(choice.unit.name))
            continue
        if isinstance(edit, Replace) and choice.candidate.values:
            keyed = {f"e{len(edits)}.{name}": value for name, value in choice.candidate.values.items()}
            tensors |= {key: value.detach().float().cpu() for key, value in keyed.items()}
            edit = edit.model_copy(update={"tensors": tuple(keyed)})
        edits.append(edit)
    return [*edits, *take_out_blocks(model, blocks)], tensors


def _budget(budget: Budget | None, remove: Mapping[str, int] | None) -> Budget:
    if (budget is None) == (remove is None):
        raise ValueError('Expected either a budget or remove={"attention": 3, ...}, and not both.')
    if budget is not None:
        return budget
    return Budget(remove=remove)


def _check(importance: str, replace: str, search: str, loss: Any) -> None:
    for name, value, allowed in (
        ("importance", importance, tuple(IMPORTANCES)),
        ("replace", replace, REPLACEMENTS),
        ("search", search, SEARCHES),
    ):
        if value not in allowed:
            raise ValueError(f"Expected argument {name} to be one of {', '.join(allowed)}, but got '{value}'.")
    if importance in ("gate_gradient", "taylor") and loss is None:
        raise ValueError(
            f"Expected argument loss=f(model, batch) for importance='{importance}', but got none. "
            "The default, 'output_divergence', needs no labels."
        )
    if search == "greedy" and importance != "output_divergence":
        raise ValueError(f"Expected importance='output_divergence' for search='greedy', but got '{importance}'.")


def _find(model: nn.Module, kinds: Sequence[str], samples: CalibrationSet) -> tuple[Unit, ...]:
    return find_units(model, kinds, samples.held_out[0])


def _greedy(
    calibrator: Calibrator, units: Sequence[Unit], budget: Budget
) -> tuple[dict[str, float], list[Choice]]:
    """Remove the unit of least divergence, refit all, score the others again; kinds keep their counts."""
    available = {kind: sum(u.kind == kind for u in units) for kind in {u.kind for u in units}}
    wanted = budget.counts(available)
    chosen: list[Choice] = []
    first: dict[str, float] = {}
    while True:
        taken = {c.unit.name: c.unit.kind for c in chosen}
        open_kinds = {k for k, n in wanted.items() if list(taken.values()).count(k) < n}  # type: ignore[arg-type]
        left = [u for u in units if u.name not in taken and u.kind in open_kinds]
        if not left:
            return first, chosen
        scores = {name: choice.divergence for name, choice in calibrator.score(left, chosen).items()}
        check_scores(scores, "output_divergence")
        first = first or scores
        best = min(left, key=lambda u: scores[u.name])
        chosen = calibrator.choose([*(c.unit for c in chosen), best])
