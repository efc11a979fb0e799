"""Plans in depth: blocks, attentions, MLPs, activations and layers to remove, and their replacements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace as with_arguments
from math import inf
from pathlib import Path
from typing import Any

from torch import nn

from prunerecover.depth.arguments import DepthConfig, budget_of
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.depth.evidence import steps_of
from prunerecover.depth.removable import units_that_may_go
from prunerecover.display.interrupted import resumable
from prunerecover.display.progress import progress
from prunerecover.divergence.registry import Divergence, comparing_by
from prunerecover.families.describe import is_supported
from prunerecover.importance.context import Importance
from prunerecover.importance.measuring.losses import Loss
from prunerecover.importance.saved_scores import SavedScores
from prunerecover.model.arguments import matches
from prunerecover.model.batches import Batches
from prunerecover.plan.budget import Budget
from prunerecover.plan.evidence import DepthEvidence
from prunerecover.plan.kinds import DEPTH_KINDS
from prunerecover.plan.plan import Plan
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.budget_search import NO_CHOICE, BudgetSearch, Candidate
from prunerecover.planning.kept import kept_plan
from prunerecover.planning.planner import Planner
from prunerecover.session.asked import planned_as_asked
from prunerecover.session.removed_share import share_evidence
from prunerecover.session.session import Session
from prunerecover.store.search_store import results_in

LIBRARY_KINDS = ("block", "attention", "mlp")  # of a supported family's units in a library for depth alone


def plan_depth(
    model: nn.Module,
    budget: Budget | None = None,
    *,
    remove: Mapping[str, int] | None = None,
    batches: Batches,
    importance: str | Importance = "output_divergence",
    loss: Loss | None = None,
    replace: str = "calibrated",
    search: str | None = None,
    kinds: str | Sequence[str] | None = None,
    include_strided: bool = False,
    ignore: Sequence[str] = (),
    scores: str | Path | SavedScores | None = None,
    seed: int = 0,
    store: str | Path | None = None,
    divergence: str | Divergence | None = None,
) -> Plan:
    """Choose units of depth to remove within a budget; the model is bit-identical afterwards.

    Args:
        model: Any network, wrapped or not. Models of the supported families are known by their parts; in all further
            networks, and for layers, the computation graph shows the removable units (see `find_sites`).
        budget: Share of the MACs, parameters or latency of the merged model, such as Budget(macs=0.3), or the amount
            left, such as Budget(macs="0.8G") a sample or Budget(latency="5ms") for the first batch. The budget is met;
            a warning names an excess of more than two points (in a named search, of more than the smallest unit).
        remove: Number of units per kind, short for `Budget(remove=...)`.
        batches: Calibration batches: tensors, tuples with the input first, or mappings. Labels are read by importances
            with a `loss` alone, and to see whether BatchNorm statistics lag behind the weights (see
            `recovery.dense_reference`). Every 4th sample is held out to judge fits to the others. The "program" decides
            by the first 256 samples; further samples serve the tuning alone, as in `plan_pruning`.
        importance: Ranking of units within their kind: "output_divergence" (the default), "cross_entropy",
            "gate_gradient", "block_influence", "angular_distance", "block_output_angle", "taylor", "squared_taylor",
            "r_score", "magnitude", "l2_norm", "random", a name given to `register_importance`, or a callable
            `(context) -> {unit name: number}`; see `importance.context`. Gate gradients, block influence and angular
            distance of attentions and MLPs need a supported family.
        loss: `loss(model, batch) -> scalar`, for "cross_entropy" and importances with gradients.
        replace: Replacement of removed units. "calibrated" fits replacements, picks each by its effect on the output
            and tunes all on the output, without labels. Whole blocks leave a refit or map in the layer before, without
            new parameters; units known from the graph alone leave a linear map of the channels, a slope and bias, or a
            constant, where the output changes less for the cost. "zero" and "identity" are available by name.
        search: Search by name; None (the default): the best available. By output divergence with calibrated
            replacements, the best is "program", the integer program over the library of variants, as in
            `plan_pruning`: units are fitted and scored alone, solved for, and the choice is refined, each time with
            replacements fitted in order. In a supported family, activations and layers by `kinds`, mixtures of experts,
            norms behind branches, and blocks without a preceding layer on the stream (most parallel branches) are not
            in the library; there, if outputs cannot be compared, and where the network's code raises without the chosen
            units together, "greedy" is the default. "greedy" removes single units by divergence per saved cost, and
            ranks the rest again on the pruned network; "exact" judges every unit at each step, instead of promising
            units alone. For a share of a cost in a supported family, both also search without blocks, without MLPs and
            without activations, and keep the best set. Both minimise the output divergence, or, with
            importance="cross_entropy", the `loss`: the likelihood of text (`language.likelihood.next_token_loss`), of
            answers (`answer_loss`), or your own. "run" takes one contiguous run of blocks of a supported family: among
            the runs that turn the residual stream least, the run of least output divergence, or, with
            importance="angular_distance", of least angle at the last token (Gromov et al., arXiv 2403.17887), or, with
            importance="block_influence", of least mean cosine distance. "one_shot" ranks once. "two_to_one" ranks once,
            and takes two units besides attentions for each attention; "rounds" ranks again after each removal, by any
            importance.
        kinds: Kinds of removable units, for a budget in a share of cost; None: all kinds but layers in supported
            families, all kinds elsewhere. A budget in units names the kinds itself.
        include_strided: Whether layers that change spatial dimensions may go, too, replaced by a pooling.
        ignore: Shell patterns of unit names that stay, such as "blocks.0.*".
        scores: Scores of the dense network, saved by `sensitivity`: units are not ranked alone again, whatever the
            budget; a search still judges units on top of each other.
        seed: Seed of the held-out split and of everything random.
        store: Folder of intermediate results. A search interrupted, by Ctrl-C or a kill, and begun again with the same
            network, samples and arguments continues behind the last result, and gives the same plan. Functions, such
            as a `loss`, count by name, and by the loss of the first batch. Take another folder once code has changed,
            and delete the folder when the plan is saved: fitted tensors are kept, too, of a large model several times
            the size of linear maps of all blocks. Damaged results are found anew. None: nothing is kept.
        divergence: Comparison of outputs: a name among `divergence.registry.DIVERGENCES`, or a callable `(dense,
            pruned) -> scalar`; None: by the structure of the outputs.

    Returns:
        The plan, with the importance of every unit as evidence, and, for a share of a cost, the removed share.

    Raises:
        ValueError: If the budget cannot be met, an argument is unknown, there are no batches, or importances are NaN.
    """
    budget = budget_of(budget, remove)
    config = DepthConfig(
        importance=importance,
        loss=loss,
        replace=replace,
        search=search,
        kinds=kinds,
        include_strided=include_strided,
        ignore=ignore,
        scores=scores,
        seed=seed,
        store=store,
    )
    with comparing_by(divergence):
        return depth_plan(Session.with_dense_reference(model, batches, loss=loss, seed=seed), budget, config)


def depth_plan(session: Session, budget: Budget, config: DepthConfig) -> Plan:
    """Return `plan_depth`'s plan for the network of a session.

    Args:
        session: Network and samples.
        budget: Budget, as in `plan_depth`.
        config: All other arguments of `plan_depth`.
    """
    with progress("planning depth"):
        return planned_as_asked(session, budget, lambda shares: _in_shares(session, shares, config))


def _in_shares(session: Session, budget: Budget, config: DepthConfig) -> Plan:
    """Return the plan of a budget in shares or units: out of the library where the library serves, else by a search."""
    if _is_usual(session, budget, config):
        try:
            planner = _library_planner(session, budget, config)
            with session.evaluating():
                serves = session.output.comparable and planner.unscored.fits_depth
            if serves:
                return _out_of_library(planner, budget, config)
        except NO_CHOICE:  # no unit may go, or units are too large for so much: told by the search
            pass
    if config.search == "program":
        raise ValueError(
            "Expected a budget, network and arguments that the library of depth serves, for search='program', but got "
            "others: it plans a share of a cost, or numbers of units, that units with fitted replacements can meet, in "
            "a supported family blocks, attentions and MLPs, by output divergence. Leave the search out for the best "
            "that is possible."
        )
    with resumable(config.store, "result", results_in):
        return DepthSearch(session, budget.kinds(config.kinds or ()) or config.kinds, config).plan(budget)


def _is_usual(session: Session, budget: Budget, config: DepthConfig) -> bool:
    """Whether a share of a cost of a supported family is planned with enough samples, and nothing else is asked for."""
    search = None if config.search == "program" else config.search
    usual = with_arguments(config, search=search, kinds=None, ignore=(), seed=0, store=None) == DepthConfig()
    some = budget.share[1] > 0 if budget.share is not None else any((budget.remove or budget.ratio or {}).values())
    known = set(_library_kinds(session.model, budget, config)) <= set(LIBRARY_KINDS) or not is_supported(session.model)
    return usual and some and known and session.samples.enough


def _library_kinds(model: nn.Module, budget: Budget, config: DepthConfig) -> tuple[str, ...]:
    """Return the kinds of units in a library for depth alone."""
    usual = LIBRARY_KINDS if is_supported(model) else DEPTH_KINDS
    return tuple(budget.kinds(config.kinds or usual))


def _library_planner(session: Session, budget: Budget, config: DepthConfig) -> Planner:
    """Return the planner of a budget out of a library of depth alone.

    Raises:
        ValueError: If a pattern in `ignore` matches nothing, or everything.
        Refusal: If no unit may go.
    """
    kinds, ignore = _library_kinds(session.model, budget, config), list[str]()
    if config.ignore:
        with session.evaluating():
            removals, _ = units_that_may_go(session.model, session.traced, kinds, config)
        names = [unit.name for unit in removals.units]
        ignore = [pattern for pattern in config.ignore if any(matches(name, (pattern,)) for name in names)]
    shared = PruningConfig(kinds=kinds, ignore=ignore, seed=config.seed, store=config.store)
    return Planner(session, tuple(budget.costs) or "macs", shared)


def _out_of_library(planner: Planner, budget: Budget, config: DepthConfig) -> Plan:
    """Return the plan of a budget in a share of a cost out of the library, as a plan of depth."""
    with planner.searching():
        found = _of_units(planner, budget) if budget.in_units else BudgetSearch(planner, budget).together()
    arguments = {
        "budget": budget.to_dict(),
        "replace": config.replace,
        "search": "program",
        "kinds": sorted({site.kind for site in planner.library.sites.values()}),
        "ignore": list(config.ignore),
    }
    made_by = found.plan.made_by.model_copy(update={"method": "depth/output_divergence", "arguments": arguments})
    importance = DepthEvidence.of(found.plan.evidence).importance
    removed = {name for names in found.plan.removed.values() for name in names}
    units = (site.unit for name, site in planner.library.sites.items() if site.unit and name in removed)
    with planner.session.evaluating():
        steps = steps_of(
            planner.session, found.plan.edits, sorted(units, key=lambda unit: importance.get(unit.name, inf))
        )
    evidence = {**found.plan.evidence, **_removed_share(planner, budget, found), **steps}
    return found.plan.model_copy(update={"made_by": made_by, "evidence": evidence}).with_tensors(found.plan.tensors)


def _of_units(planner: Planner, budget: Budget) -> Candidate:
    """Return the plan of a budget in units."""
    sites = planner.unscored.sites.values()
    numbers = {kind: n for kind, n in budget.counts(Counter(site.kind for site in sites)).items() if n}
    state = planner.in_units(numbers)
    names = "units", *state.said
    plan = kept_plan(planner.store, names, lambda: planner.plan(*planner.finished(state)), everywhere=True)
    return Candidate(plan, {}, state.divergence)


def _removed_share(planner: Planner, budget: Budget, found: Candidate) -> dict[str, Any]:
    """Return the evidence of the removed share of each cost."""
    if budget.in_units:
        return {}
    smallest = None
    if budget.share is not None and budget.latency is None:
        removals = [max(own.values()) for own in planner.costs.shares(budget.share[0]).values()]  # one per unit
        smallest = min(share for share in removals if share > 0)
    return share_evidence(planner.session, found.plan.edits, budget.shares, found.saved, smallest)
