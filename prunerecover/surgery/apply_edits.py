"""Application of a plan to a model: the only code that changes structure.

Checks come first, and a failure half way is taken back: after an error the model is as before.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from prunerecover.families.describe import describe_stacks
from prunerecover.model.hashing import tensors_hash, weights_hash
from prunerecover.model.settings import differing_settings, settings_of
from prunerecover.plan.edits import Edit, Narrow
from prunerecover.plan.plan import Plan
from prunerecover.plan.removed_units import shortened
from prunerecover.surgery.executors import EditContext, execute
from prunerecover.surgery.journal import Journal
from prunerecover.surgery.narrowing import Cuts
from prunerecover.surgery.routing import shared_counts
from prunerecover.surgery.transformers_depth import freed_slots, renumber
from prunerecover.surgery.transformers_width import follow_widths

# Packages whose code runs during an edit; any further code is the user's.
SURGERY = frozenset({"prunerecover", "torch", "transformers"} | sys.stdlib_module_names)


@dataclass(frozen=True)
class Applied:
    """Parameters changed by surgery, for an optimizer, and the journal for the undo.

    Attributes:
        removed: Parameters removed from the model, by old name.
        added: New parameters by name, each with the old parameter whose optimizer group it joins.
        journal: Every change, in order, for `undo`.
        cuts: New parameters made of an old one, each with the old parameter and its cuts; no cuts for refitted
            parameters and for biases that took over a constant. The new parameters are also in `added`, the old in
            `removed`.
    """

    removed: dict[str, Parameter] = field(default_factory=dict)
    added: dict[str, tuple[Parameter, Parameter]] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)
    cuts: dict[Parameter, tuple[Parameter, Cuts]] = field(default_factory=dict)

    def origin(self, parameter: Parameter) -> tuple[Parameter, Cuts]:
        """Return the old parameter that a present one was cut from, with the cuts; the parameter itself if uncut."""
        return self.cuts.get(parameter, (parameter, ()))

    def __repr__(self) -> str:
        """Names without values: a console shows every returned object."""
        return f"Applied(removed=[{', '.join(self.removed)}], added=[{', '.join(self.added)}])"


@torch.inference_mode(False)  # new parameters could never train
def apply_edits(
    model: nn.Module, edits: Iterable[Edit], tensors: Mapping[str, Tensor] | None = None, *, to_read: bool = False
) -> Applied:
    """Apply edits in order; if an edit fails, undo all.

    Args:
        model: Network without wrappers.
        edits: Edits in order.
        tensors: Values for replacements, by key. None: only the structure is made, for weights to be loaded.
        to_read: Whether the network is only read afterwards, such as a copy to be scored: large tensors are cut when
            used, and refitted values are shared, to save memory.

    Raises:
        ValueError: If an edit names a part that the model lacks.
    """
    edits, before = list(edits), dict(model.named_parameters())
    context = EditContext(model, tensors, to_read)
    try:
        if edits:
            context.journal.check_saving(model)
        for edit in edits:
            _execute(edit, context)
        renumber(model)
        for path, slot in freed_slots(model):
            context.journal.set_attribute(model, path, "layer_idx", slot)
        narrowed = {edit.kind for edit in edits if isinstance(edit, Narrow)}
        if "expert" in narrowed:
            for (path, attribute), count in shared_counts(model).items():
                context.journal.set_attribute(model, path, attribute, count)
        if narrowed:
            follow_widths(model, context.journal)
        return _applied(before, context)
    except BaseException:
        undo(model, context.journal)
        raise


def _applied(before: Mapping[str, Parameter], context: EditContext) -> Applied:
    """Compare the parameters with those before the surgery."""
    after = dict(context.model.named_parameters())
    left = set(after.values())
    removed = {name: p for name, p in before.items() if p not in left}
    added = {name: (p, context.like_of(p)) for name, p in after.items() if p in context.origins}
    gone = set(removed.values())
    origins = {p: context.origin_of(p) for p, _ in added.values()}
    cuts = {p: (old, how) for p, (old, how) in origins.items() if old in gone}
    return Applied(removed, added, context.journal, cuts)


def _execute(edit: Edit, context: EditContext) -> None:
    """Apply an edit; if a named part has another form, the error calls it a fault of the plan."""
    try:
        execute(edit, context)
    except (LookupError, AttributeError, ArithmeticError, RuntimeError, StopIteration) as error:
        if not _is_of_surgery(error):
            raise
        raise ValueError(
            f"Expected an edit that fits this {type(context.model).__name__}, but {edit.op} of "
            f"'{getattr(edit, 'unit', getattr(edit, 'into', 'config'))}' failed ({type(error).__name__}: "
            f"{str(error)[:200]}). Was the plan made for another model, or edited?"
        ) from error


def _is_of_surgery(error: Exception) -> bool:
    """Whether an error arose in surgery, not in a signal handler or a user's code, nor for lack of memory."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    packages = {frame.f_globals.get("__name__", "").partition(".")[0] for frame in frames}
    return packages <= SURGERY and not isinstance(error, torch.OutOfMemoryError)


def apply_and_check(model: nn.Module, plan: Plan, tensors: Mapping[str, Tensor] | None, where: str = "") -> Applied:
    """Apply a plan's edits, compare the model with the plan's result, and take the edits back on a difference.

    Args:
        model: Network without wrappers.
        plan: Plan to apply; empty fields of the plan's result are not compared.
        tensors: Values for replacements, see `apply_edits`.
        where: Name of the plan's source for the message, for example " in plan.json".

    Raises:
        ValueError: If an edit names a part that the model lacks, or the result differs from the plan's.
    """
    applied = apply_edits(model, plan.edits, tensors)
    try:
        _check_result(model, plan, where)
        return applied
    except BaseException:
        undo(model, applied.journal)
        raise


def _check_result(model: nn.Module, plan: Plan, where: str) -> None:
    found = tensors_hash(model)
    difference = differing_settings(plan.result.settings, settings_of(model))
    if plan.result.tensors not in ("", found):
        difference = f"{found[:12]} instead of {plan.result.tensors[:12]}"
    if difference:
        raise ValueError(
            f"Expected the plan{where} to leave the model it describes, but it left another ({difference}). Was the "
            "file edited?"
        )


@contextmanager
def edited(
    model: nn.Module, edits: Iterable[Edit], tensors: Mapping[str, Tensor] | None = None, *, to_read: bool = False
) -> Iterator[Applied]:
    """Apply edits inside a `with` block, with an undo afterwards; yields the changes of the parameters.

    Args:
        model: Network without wrappers.
        edits: Edits in order.
        tensors: Values for replacements, see `apply_edits`; costs do not depend on values.
        to_read: Whether the network is only read, see `apply_edits`.
    """
    applied = apply_edits(model, edits, tensors, to_read=to_read)
    try:
        yield applied
    finally:
        undo(model, applied.journal)


def undo(model: nn.Module, journal: Journal) -> None:
    """Take back all changes in the journal, the last first, and empty the journal."""
    journal.undo(model)
    renumber(model)


def check_source(model: nn.Module, plan: Plan) -> None:
    """Raise ValueError unless the plan starts from this model's names, shapes and settings."""
    found = tensors_hash(model)
    if found == plan.source.tensors:
        _check_settings(model, plan)
        return
    hint = "It has been pruned with this plan already." if found == plan.result.tensors else _difference(model, plan)
    raise ValueError(
        f"Expected the model that the plan was made for ({plan.source.class_ or 'unknown'}, "
        f"{plan.source.tensors[:12]}), but got {type(model).__name__} ({found[:12]}). {hint}"
    )


def _check_settings(model: nn.Module, plan: Plan) -> None:
    difference = differing_settings(plan.source.settings, settings_of(model))
    if difference:
        raise ValueError(
            f"Expected the model that the plan was made for ({plan.source.class_ or 'unknown'}), but got one "
            f"with another computation: {difference}. Build it with the arguments of the plan's model."
        )


def _difference(model: nn.Module, plan: Plan) -> str:
    units = f"The plan removes {', '.join(shortened(unit for names in plan.removed.values() for unit in names))}"
    planning = {"bypass": "depth", "patch": "depth", "reroute": "depth"}
    planning |= {"narrow": "width", "rewrite": "width", "free_heads": "width", "refit": "width"}
    if all(edit.op in planning for edit in plan.edits):
        found = "depth" if any(planning[edit.op] == "depth" for edit in plan.edits) else "width"
        return (
            f"{units}; this model's tensors have other names or sizes. Was it built for as many classes? Make a plan "
            f"for it with plan_{found}(model, ...)."
        )
    try:
        depth = " and ".join(str(len(stack.blocks)) for stack in describe_stacks(model))
    except ValueError as error:
        return str(error)
    return f"{units}; this model has {depth} blocks. Make a plan for it with plan_depth(model, ...)."


def check_tensors(model: nn.Module, plan: Plan) -> None:
    """Raise ValueError if fitted tensors of the plan are missing or belong to different weights than the model's."""
    missing = [key for key in plan.needed_tensors if key not in plan.tensors]
    if missing:
        raise ValueError(
            f"Expected the plan's fitted tensors ({', '.join(missing[:3])}, ...), but they are missing. Put the "
            ".safetensors file that was saved with the plan beside it, or pass refit=batches to fit them anew."
        )
    if not plan.needed_tensors or plan.source.weights is None:
        return
    found = weights_hash(model)
    if found is not None and found != plan.source.weights:
        raise ValueError(
            f"Expected the weights that the plan's tensors were fitted to ({plan.source.weights[:12]}), but the model "
            f"has others ({found[:12]}). Pass refit=batches to fit them to this model."
        )
