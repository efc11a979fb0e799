"""Application of a plan to a model, with the plan's fitted tensors or with tensors refitted to other weights.

The module stands above surgery, which knows edits alone, and above planning, which fits tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from prunerecover.calibration.samples import MIN_SAMPLES
from prunerecover.calibration.stand_in_fits import refit_in_order
from prunerecover.depth.fits import fit_again
from prunerecover.families.libraries.offloaded_weights import is_offloaded, map_offloaded
from prunerecover.library.blocks_anew import layers_before_blocks
from prunerecover.library.heads_anew import heads_anew
from prunerecover.model.batches import Batches
from prunerecover.model.copies import deep_copy, share_copy
from prunerecover.model.evaluation import evaluating, uncompiled
from prunerecover.model.hashing import weights_hash
from prunerecover.model.paths import get_module, parent_path, unwrap
from prunerecover.plan.edits import Bypass, Config, Edit, Fold, Merge, Narrow, Refit, Remove, Replace
from prunerecover.plan.plan import Plan, check_plan
from prunerecover.recovery.reconstruction import fit_layers
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import Applied, apply_and_check, check_source, check_tensors
from prunerecover.width.expert_refit import LAST, narrowed_experts, refitted_experts
from prunerecover.width.tuning import fitted_and_tuned


def apply_plan(model: nn.Module, plan: Plan | str | Path, refit: Batches | None = None) -> Applied:
    """Change the model in place as the plan says.

    Weights of a model offloaded by accelerate come back to the CPU, mapped from their files where they are on disk.
    Two linears with a removed activation between them stay two for training, which works better, and save nothing until
    `merge(model)` joins them. The merged model meets the plan's share of the MACs or parameters:
    `plan.evidence["removed_share"]` holds the removed share of each cost, before and after merging.

    Args:
        model: The model the plan was made for, at any dtype and on any device, wrapped or not.
        plan: The plan, or the path of a plan file; a plan without edits changes nothing.
        refit: Calibration batches to refit replacements and layers, for a model with other weights than the plan's.

    Returns:
        The removed and the new parameters.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If the plan is for another model, fitted tensors are missing or were fitted to other weights, or the
            file is no plan.
        FileNotFoundError: If the file does not exist.
    """
    model = unwrap(model)
    plan = Plan.load(plan) if isinstance(plan, str | Path) else plan
    check_plan(plan)
    if not plan.edits:
        return Applied()
    if is_offloaded(model):
        loaded = share_copy(model)
        map_offloaded(loaded)
        check_source(loaded, plan)
        map_offloaded(model)
    else:
        check_source(model, plan)
    if refit is None:
        check_tensors(model, plan)
    else:
        plan = refit_plan(model, plan, refit)
    return apply_and_check(model, plan, plan.tensors)


def refit_plan(model: nn.Module, plan: Plan, batches: Batches, seed: int | None = None) -> Plan:
    """Return the plan with the same units and forms of replacements, refitted to a model, which stays bit-identical.

    Refitted weights of width are tuned towards the model's output, also after edits in depth. Layers are fitted before
    branches are replaced: a replaced branch right before a removed block leads to its own stream, not to the one behind
    the block as in a new plan.

    Args:
        model: Model with the plan's initial structure and other weights.
        plan: Plan; the edits stay the same.
        batches: Calibration batches; see `plan_depth` and `plan_width`.
        seed: Seed of the held-out split; None: the plan's own.

    Raises:
        ValueError: If the model is not of the plan's structure or there are too few samples to fit.
    """
    check_source(unwrap(model), plan)
    seed = plan.made_by.seed if seed is None else seed
    return refit(Session.with_dense_reference(model, batches, seed=seed), plan)


def refit(session: Session, plan: Plan) -> Plan:
    """Return `refit_plan`'s plan for the network of a session.

    Args:
        session: Network with the plan's initial structure, and samples.
        plan: Plan, as of `refit_plan`.
    """
    tensors, done = dict[str, Tensor](), list[Edit]()
    with session.evaluating():
        for stage in _stages(plan.edits):
            refits = [edit for edit in stage if isinstance(edit, Refit)]
            blocks = _blocks_gone(plan.edits[len(done) :])
            if any(isinstance(edit, Narrow) and edit.tensors for edit in stage):
                edits, since = [*done, *stage], len(done)
                tensors = fitted_and_tuned(edits, tensors, session.samples, session.output, since=since)
            elif refits:
                tensors |= _fit_layers(session, done, refits, tensors, blocks)
            else:
                tensors |= _fit_replacements(session.pruned(done, tensors), stage, blocks)
            done += stage
    source = plan.source.model_copy(update={"weights": weights_hash(session.model)})
    return plan.model_copy(update={"source": source}).with_tensors(tensors)


def _stages(edits: Sequence[Edit]) -> Iterator[list[Edit]]:
    """Split edits into runs that can be fitted on one model, each after the edits of the earlier runs.

    A new stage begins at a merge, at a unit named after blocks have moved or after narrowing or refitting, and at a
    group narrowed a second time.
    """
    stage: list[Edit] = []
    moved = False
    for edit in edits:
        is_block = isinstance(edit, Remove) and edit.kind == "block"
        other = any(stage and isinstance(stage[-1], apart) != isinstance(edit, apart) for apart in (Narrow, Refit))
        again = isinstance(edit, Narrow) and any(isinstance(e, Narrow) and e.unit == edit.unit for e in stage)
        behind = other or again or (moved and not is_block and not isinstance(edit, Config))
        if stage and (isinstance(edit, Merge) or behind):
            yield stage
            stage, moved = [], False
        moved = moved or is_block
        stage.append(edit)
    if stage:
        yield stage


def _fit_layers(
    session: Session,
    done: Sequence[Edit],
    refits: Sequence[Refit],
    tensors: Mapping[str, Tensor],
    gone: Sequence[str],
) -> dict[str, Tensor]:
    """Return the values of layers, by least squares from the present inputs to the dense outputs.

    A layer right before removed blocks, whose names are `gone`, leads to the dense stream behind.

    Raises:
        ValueError: If a layer cannot be fitted by least squares.
    """
    found = _fit_heads(session, done, refits, tensors) | _fit_experts(session, done, refits, tensors)
    fitted = [edit for edit in refits if found.keys() & set(edit.tensors)]
    others = [edit for edit in refits if edit not in fitted]
    if not others:
        return found
    network = deep_copy(session.output.pruned([*done, *fitted], {**tensors, **found}))
    _check_refitted_whole(network, others)
    before = layers_before_blocks(session, network, gone) if gone else {}
    units = {edit.unit for edit in others} - before.keys()
    if units:
        known = Plan(edits=tuple(done))
        fit_layers(network, session.model, known, session.samples.whole, seed=session.seed, only=units)
        before = layers_before_blocks(session, network, gone) if gone else {}
    for edit in others:
        values = before.get(edit.unit) or dict(get_module(network, edit.unit).named_parameters())
        found |= {key: values[name].detach().float().cpu() for name, key in zip(edit.names, edit.tensors, strict=True)}
    return found


def _fit_heads(
    session: Session, done: Sequence[Edit], refits: Sequence[Refit], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the values of layers with smaller heads, as linear maps of the dense layers' outputs."""
    narrowed = [edit for edit in done if isinstance(edit, Narrow) and edit.kind == "head_dim"]
    makes = {parent_path(part.tensor): edit for edit in narrowed for part in edit.group if part.makes}
    edits = {makes[edit.unit].unit: makes[edit.unit] for edit in refits if edit.unit in makes}
    if not edits:
        return {}
    before = [edit for edit in done if edit not in narrowed and not isinstance(edit, Refit)]
    network = session.output.pruned(before, tensors)
    with evaluating(network), uncompiled():
        values = heads_anew(network, tuple(edits.values()), session.samples.whole)
    return {
        key: values[f"{edit.unit}.{name}"]
        for edit in refits
        for name, key in zip(edit.names, edit.tensors, strict=True)
        if f"{edit.unit}.{name}" in values
    }


def _fit_experts(
    session: Session, done: Sequence[Edit], refits: Sequence[Refit], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the last matrices of the experts in layers with fewer experts."""
    narrowed = narrowed_experts(done)
    keys = {edit.unit: edit.tensors[0] for edit in refits if edit.unit in narrowed and edit.names == (LAST,)}
    return {keys[path]: value for path, value in refitted_experts(session, done, tensors, list(keys)).items()}


def _check_refitted_whole(network: nn.Module, refits: Sequence[Refit]) -> None:
    for edit in refits:
        held = {name for name, own in get_module(network, edit.unit)._parameters.items() if own is not None}
        if held != set(edit.names):
            raise ValueError(
                f"Expected '{edit.unit}' to be a layer with all parameters fitted by least squares, but it holds "
                f"{', '.join(sorted(held))}. Apply the plan with its saved tensors, or plan again for this model."
            )


def _fit_replacements(session: Session, stage: Sequence[Edit], blocks: Sequence[str]) -> dict[str, Tensor]:
    """Return the fitted tensors of a stage's replacements.

    Args:
        session: Network with the stage's initial state, and samples.
        stage: Edits of the stage.
        blocks: Names of the blocks removed in the stage, or right after.

    Raises:
        ValueError: If removed blocks leave a map, which earlier versions fitted, or samples are too few.
    """
    if folds := [edit for edit in stage if isinstance(edit, Fold)]:
        raise ValueError(
            f"Expected replacements that can be fitted again, but '{folds[0].unit}' leaves a map in '{folds[0].into}', "
            "as plans of earlier versions do. Apply the plan with its saved tensors, or plan again for this model."
        )
    fitted = [edit for edit in stage if isinstance(edit, Bypass | Replace) and edit.tensors]
    if not fitted:
        return {}
    if not session.samples.enough:
        raise ValueError(
            f"Expected at least {MIN_SAMPLES} samples to fit '{fitted[0].unit}' again, but got "
            f"{session.samples.n_samples}. Pass more batches."
        )
    if any(isinstance(edit, Replace) for edit in fitted):
        found = fit_again(session, {edit.unit: edit.leaves for edit in fitted}, blocks)
    else:
        apart = [edit for edit in stage if not isinstance(edit, Merge)]
        found = refit_in_order(session.model, apart, session.samples.fit)
    keys = {edit.unit: edit.tensors for edit in fitted if edit.unit in found}
    return {key: found[unit].values[key.rpartition(".")[2]].cpu() for unit, own in keys.items() for key in own}


def _blocks_gone(edits: Sequence[Edit]) -> list[str]:
    """Return the blocks removed before any other unit of depth is named after them."""
    found = list[str]()
    for edit in edits:
        is_block = isinstance(edit, Remove | Bypass) and edit.kind == "block" and not getattr(edit, "tensors", ())
        if found and not is_block and not isinstance(edit, Config | Refit):
            break
        found += [edit.unit] if is_block else []  # type: ignore[union-attr]
    return found
