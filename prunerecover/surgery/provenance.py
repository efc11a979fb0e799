"""Provenance of a plan: source, result and maker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from prunerecover.cost.macs import count_macs
from prunerecover.families.constructors import construction_of
from prunerecover.model.batches import ModelInputs
from prunerecover.model.copies import meta_copy, share_copy
from prunerecover.model.hashing import tensors_hash, weights_hash
from prunerecover.model.settings import data_hash, settings_of
from prunerecover.plan.edits import Edit
from prunerecover.plan.plan import Plan
from prunerecover.plan.records import MadeBy, Result, Source
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.version import __version__


def plan_for(
    model: nn.Module,
    edits: Sequence[Edit],
    *,
    method: str,
    arguments: Mapping[str, Any] | None = None,
    seed: int = 0,
    tensors: Mapping[str, Tensor] | None = None,
    example: ModelInputs | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> Plan:
    """Make the plan of `edits` for this model; the model is not changed.

    Args:
        model: Network without wrappers, before the edits.
        edits: Edits in order.
        method: Name of the deciding method, as in "depth/output_divergence".
        arguments: Arguments of the method, as JSON primitives.
        seed: Seed of the method.
        tensors: Fitted values named in the edits.
        example: Batch, to count the MACs of the result; None: 0 is recorded.
        evidence: Importances, trials, predictions.
    """
    if not edits:
        return Plan()
    return Plan(
        source=source_of(model),
        result=result_of(model, edits, example),
        made_by=MadeBy(method=method, arguments=dict(arguments or {}), version=__version__, seed=seed),
        edits=tuple(edits),
        evidence=dict(evidence or {}),
    ).with_tensors(tensors or {})


def result_of(model: nn.Module, edits: Sequence[Edit], example: ModelInputs | None) -> Result:
    """Describe a model after edits; the model is not changed.

    Args:
        model: Network without wrappers, before the edits.
        edits: Edits in order.
        example: Batch, to count MACs; None: 0 is recorded.
    """
    pruned = meta_copy(model) if example is None else share_copy(model)
    apply_edits(pruned, edits, to_read=True)
    return Result(
        tensors=tensors_hash(pruned),
        params=sum(p.numel() for p in pruned.parameters()),
        macs=0 if example is None else count_macs(pruned, example),
        settings=settings_of(pruned),
    )


def source_of(model: nn.Module) -> Source:
    """Describe a model as the start of a plan."""
    cls, construction = type(model), construction_of(model)
    return Source(
        class_=f"{cls.__module__}.{cls.__qualname__}",
        constructor=construction.data,
        tensors=tensors_hash(model),
        weights=weights_hash(model),
        settings=settings_of(model),
        constructed=None if construction.data is None else data_hash(construction.data),
        not_constructed=construction.why_not,
    )
