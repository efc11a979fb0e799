"""The plan of a choice out of a library, with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from prunerecover.files.held_tensors import held
from prunerecover.library.edits import Chosen
from prunerecover.library.library import Library
from prunerecover.model.narrow.when_used import computed
from prunerecover.plan.evidence import DepthEvidence, WidthEvidence
from prunerecover.plan.groups import Group
from prunerecover.plan.plan import Plan
from prunerecover.session.session import Session
from prunerecover.surgery.provenance import plan_for

WIDTH_EDITS = ("narrow", "rewrite", "free_heads")


def plan_of(library: Library, chosen: Chosen, divergence: float, groups: Sequence[Group], seed: int) -> Plan:
    """Return the plan of a choice.

    Args:
        library: Scored.
        chosen: Variants with what is fitted.
        divergence: Divergence of the output on held-out samples.
        groups: Groups of the network.
        seed: Seed of planning.
    """
    session = library.session
    with session.evaluating():
        edits, tensors = library.maker.edits(chosen, in_place=False)
    gone = {name: len(units) for variant, _ in chosen.values() for name, units in variant.removed.items()}
    width = WidthEvidence(
        kept={g.name: (g.size - gone.get(g.name, 0), g.size) for g in groups},
        kinds={g.name: g.kind for g in groups},
    )
    units = {site.name: site.unit.kind for site in library.sites.values() if site.unit}
    importance = {name: _of_unit(library, name) for name in units}
    removed = [name for name, (variant, _) in chosen.items() if variant.leaves]
    depth = DepthEvidence(
        units=units,
        importance={name: value for name, value in importance.items() if isfinite(value)},
        samples=session.samples.n_samples,
        divergence={removed[-1]: divergence} if removed else {},
    )
    return plan_for(
        session.model,
        edits,
        method="joint",
        seed=seed,
        tensors={key: held(computed(value.detach().cpu())) for key, value in tensors.items()},
        example=session.example,
        evidence={**(depth.to_dict() if units else {}), **(width.to_dict() if groups else {})},
    )


def _of_unit(library: Library, site: str) -> float:
    """Return the least divergence where a unit alone goes."""
    scores = [one.divergence for one in library.scored[site].values() if one.variant.leaves]
    return min(scores, default=0.0)


def depth_share(session: Session, cost: str, plan: Plan) -> float:
    """Return the share of a plan's saving in a cost that goes with units of depth; of a latency by the MACs.

    Args:
        session: Network and samples.
        cost: Name of the cost.
        plan: Plan.
    """
    counted = session.cost("macs" if cost == "latency" else cost)
    whole = counted.removed_share(plan.edits)
    width = counted.removed_share([edit for edit in plan.edits if edit.op in WIDTH_EDITS])
    return min(1.0, max(0.0, 1 - width / whole)) if whole > 0 else 0.0
