"""Plan which blocks, attentions, MLPs and activations to remove, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.batches import Batches, as_inputs, split_batches
from prunerecover.budget import Budget
from prunerecover.calibrated import REPLACEMENTS, Calibrator
from prunerecover.importance import IMPORTANCES, NEED_LOSS, Request, check_scores
from prunerecover.observing import device_of, observing, uncompiled
from prunerecover.plan import Plan
from prunerecover.provenance import plan_for
from prunerecover.search import edits_of, greedy, one_shot
from prunerecover.structure import unwrap
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
    search: str | None = None,
    ignore: Sequence[str] = (),
    seed: int = 0,
) -> Plan:
    """Decide what to remove within a budget; the model is bit-identical afterwards.

    Args:
        model: A supported model (see `find_units`), wrapped or not.
        budget: How much goes.
        remove: Short for `Budget(remove=...)`: units per kind.
        batches: Calibration batches: tensors, tuples whose first element is the input, or mappings. No labels are read,
            except by importances that take a `loss`. Every 4th sample is held out to judge what was fitted to the
            others.
        importance: What ranks units within their kind: "output_divergence" (the default), "gate_gradient", "taylor",
            "magnitude", "angular_distance", "block_influence" or "random".
        loss: `loss(model, batch) -> scalar`, for "gate_gradient" and "taylor".
        replace: "calibrated" fits what is left and picks it by its effect on the output; "zero" and "identity" are
            there by name. Whole blocks always leave nothing.
        search: "greedy" removes one unit at a time and ranks the others again on the pruned model: units interact, and
            this was measured better; it needs "output_divergence" and a budget in units. "one_shot" ranks once. None:
            greedy where it is possible.
        ignore: Shell patterns of unit names that stay, such as "blocks.0.*".
        seed: Of the held-out split and of everything random.

    Returns:
        The plan, with the importance of every unit as evidence.

    Raises:
        ValueError: If the budget cannot be met, an argument is unknown, there are no batches, or importances are NaN.
    """
    model = unwrap(model)
    budget = _budget(budget, remove)
    greedily = importance == "output_divergence" and budget.share is None
    search = search if search is not None else ("greedy" if greedily else "one_shot")
    _check(importance, replace, search, loss, budget)
    batches = _listed(batches)
    ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    with torch.inference_mode(False), observing(model), uncompiled():
        samples = split_batches(batches, device_of(model), seed)
        example = samples.held_out[0].select(torch.tensor([0]))
        found = find_units(model, [k for k in DEPTH_KINDS if k in budget.kinds(DEPTH_KINDS)], example)
        units = [u for u in found if not any(fnmatch(u.name, pattern) for pattern in ignore)]
        _check_patterns(ignore, find_units(model))
        calibrator = Calibrator(model, samples, units, replace, seed)
        if search == "greedy":
            scores, chosen = greedy(calibrator, units, budget)
        else:
            scores = IMPORTANCES[importance](Request(model, units, tuple(batches), calibrator, loss, seed))
            check_scores(scores, importance)
            timed = as_inputs(batches[0]).to(device_of(model)) if budget.latency is not None else example
            chosen = one_shot(calibrator, units, scores, budget, importance, timed)
        edits, tensors = edits_of(model, ((c.unit, c.candidate) for c in chosen))
    return plan_for(
        model,
        edits,
        method=f"depth/{importance}",
        arguments={"budget": budget.to_dict(), "replace": replace, "search": search, "ignore": list(ignore)},
        seed=seed,
        tensors=tensors,
        example=example,
        evidence={
            "importance": scores,
            "samples": samples.n_samples,
            "divergence": {choice.unit.name: choice.divergence for choice in chosen},
        },
    )


def _budget(budget: Budget | None, remove: Mapping[str, int] | None) -> Budget:
    if (budget is None) == (remove is None):
        raise ValueError('Expected either a budget or remove={"attention": 3, ...}, and not both.')
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(
            f"Expected argument budget to be a Budget, but got {type(budget).__name__}. "
            "Units per kind are remove={...}."
        )
    return Budget(remove=remove) if budget is None else budget


def _check_patterns(ignore: Sequence[str], units: Sequence[Unit]) -> None:
    for pattern in ignore:
        if not any(fnmatch(unit.name, pattern) for unit in units):
            raise ValueError(
                f"Expected argument ignore to match units such as {units[0].name}, but '{pattern}' matches none. "
                "List the names with find_units(model)."
            )


def _listed(batches: Batches) -> list[Any]:
    if isinstance(batches, Tensor | Mapping):
        raise TypeError(
            f"Expected argument batches to be an iterable of batches, but got one {type(batches).__name__}. "
            "Pass batches=[batch]."
        )
    return list(batches)


def _check(importance: str, replace: str, search: str, loss: Any, budget: Budget) -> None:
    for name, value, allowed in (
        ("importance", importance, tuple(IMPORTANCES)),
        ("replace", replace, REPLACEMENTS),
        ("search", search, SEARCHES),
    ):
        if value not in allowed:
            raise ValueError(f"Expected argument {name} to be one of {', '.join(allowed)}, but got '{value}'.")
    for kind in budget.kinds(DEPTH_KINDS):
        if kind not in DEPTH_KINDS:
            raise ValueError(f"Expected kinds among {', '.join(DEPTH_KINDS)} for a plan in depth, but got '{kind}'.")
    if importance in NEED_LOSS and loss is None:
        raise ValueError(
            f"Expected argument loss=f(model, batch) for importance='{importance}', but got none. "
            "The default, 'output_divergence', needs no labels."
        )
    if search == "greedy" and (importance != "output_divergence" or budget.share is not None):
        raise ValueError(
            "Expected importance='output_divergence' and a budget in units (remove=... or ratio=...) for "
            f"search='greedy', but got '{importance}' and {budget.to_dict()}. Use search='one_shot'."
        )
