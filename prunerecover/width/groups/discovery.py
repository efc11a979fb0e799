"""Search for groups in nearly any model: channels, heads, neurons and routed experts.

A forward pass is traced (`graph.trace`). Tied indices of parameters are units; units of the same shape form a group
(`assembly`), tried out on a copy (`dry_run`). The search does not depend on class names; attributes with a number of
heads are known by name.

Coupled groups of units come from DepGraph (arXiv 2301.12900). DepGraph's graph joins layers, and takes unknown
operations for element-wise ones. Here single indices are tied: concatenations, flattened maps, fused projections and
grouped heads need no special cases, and indices behind unknown operations stay.

Routed experts are found by structure rather than by the trace, as the visited experts depend on the data: see
`experts`. Experts are searched for only by name.

Further exceptions are units counted by an operation (a mean over channels outside a norm, a division by the number of
channels): a network with fewer units would compute another result than with units at zero. `FoundGroups.counted` lists
the counted groups. The model's outputs are no units either, nor are heads in code that computes the head size from the
width.

Features of residual streams read by norms or attentions (a transformer's hidden size) are searched for only by name,
too. Norms take statistics over the remaining features, and a removed feature differs from a zero feature. The
dimensions of heads (`heads.find`) are also searched for only by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from torch import nn

from prunerecover.display.progress import progress
from prunerecover.graph.trace import Traced, trace
from prunerecover.model.arguments import check_patterns, patterns_of
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import evaluating, inputs_of, ordinary_arithmetic, uncompiled
from prunerecover.model.narrow.freeing import attentions_in, free_heads
from prunerecover.model.paths import unwrap
from prunerecover.model.replacements import ChannelMap
from prunerecover.plan.groups import Group
from prunerecover.plan.kinds import WIDTH_KINDS, kinds_among
from prunerecover.width.groups.assembly import assemble
from prunerecover.width.groups.dry_run import try_out
from prunerecover.width.groups.experts import find_experts
from prunerecover.width.groups.found import FoundGroups, without
from prunerecover.width.groups.refusals import counting, nothing_found
from prunerecover.width.heads.find import find_head_sizes
from prunerecover.width.rewrites.padded_shortcuts import as_convolutions, find_padded_shortcuts

FOUND_KINDS = ("channel", "head", "neuron")


@ordinary_arithmetic()
def find_groups(
    model: nn.Module,
    example_inputs: Any,
    kinds: Sequence[str] = FOUND_KINDS,
    ignore: str | Sequence[str] = (),
    traced: Traced | None = None,
) -> FoundGroups:
    """Find the groups of a model, as `look_for_groups` does.

    Args:
        model: Module of any kind, wrapped or not; bit-identical afterwards.
        example_inputs: Batch in any form of calibration batches; labels are not read.
        kinds: Kinds among "channel", "head", "head_dim", "neuron", "expert" and "hidden".
        ignore: Shell patterns of names of groups to keep, such as "layer4.*".
        traced: Trace of a pass of the example; None: the pass is run where it is needed.

    Raises:
        ValueError: If a kind is unknown, the model cannot run the example, there is no group of the kinds, or a pattern
            matches no group.
    """
    kinds, ignore = kinds_among(kinds, WIDTH_KINDS), patterns_of(ignore)
    model = unwrap(model)
    if traced is None and set(kinds) != {"expert"}:
        traced = trace(model, inputs_of(example_inputs, model))
    found = look_for_groups(model, traced, kinds).of_kinds(kinds)
    if not found.groups and not found.linked:
        raise nothing_found(model, kinds, found)
    check_patterns(ignore, [group.name for group in found.named], "groups")
    kept = without(found, ignore)
    if not kept.groups and not kept.linked:
        raise ValueError(
            f"Expected some groups outside ignore={list(ignore)}, but all {len(found.named) - len(kept.counted)} are "
            f"ignored.{counting(kept.counted) if kept.counted else ''}"
        )
    return kept


@ordinary_arithmetic()
def look_for_groups(model: nn.Module, traced: Traced | None, kinds: Sequence[str]) -> FoundGroups:
    """Return all groups of a model, of any kinds; none if there are no groups.

    `nn.MultiheadAttention` computes the head size from `embed_dim`, and torchvision's Swin from the width of the
    stream: an attention with removable heads must first become a `NarrowAttention` or `NarrowWindowAttention`
    (`FoundGroups.attentions`). Subclasses keep their heads.

    Args:
        model: Network, unwrapped.
        traced: Trace of a forward pass; None: experts alone.
        kinds: Kinds of interest: features of streams are groups if "hidden" is included, dimensions of heads if
            "head_dim" is.
    """
    experts = find_experts(model)
    if traced is None:
        return FoundGroups(experts)
    rewrites, attentions = find_padded_shortcuts(traced), attentions_in(traced.model)
    if rewrites or attentions or any(isinstance(module, ChannelMap) for module in traced.model.modules()):
        twin = share_copy(traced.model)
        as_convolutions(twin, rewrites)
        free_heads(twin, attentions)
        traced = trace(twin, traced.inputs)
    with progress("trying groups out"), uncompiled(), evaluating(traced.model):
        found = assemble(traced, hidden="hidden" in kinds)
        linked = tuple(together for together in found.linked if all(map(_is_plain, together)))
        tried = try_out(traced, tuple(filter(_is_plain, found.groups)), linked)
        heads = tuple(group for group in tried.groups if group.kind == "head")
        sizes, stay = find_head_sizes(traced, heads) if "head_dim" in kinds else ((), ())
    counted = (*found.counted, *tried.counted)
    known = {*tried.groups, *chain(*tried.linked), *tried.failed, *(one.group for one in counted)}
    return replace(
        tried,
        groups=(*tried.groups, *sizes, *experts),
        rewrites=rewrites,
        counted=counted,
        attentions=attentions,
        tied=tuple(group for group in (*found.groups, *chain(*linked)) if group not in known and _is_plain(group)),
        sized=stay,
        traced=traced,
    )


def _is_plain(group: Group) -> bool:
    """Whether no weight of a group comes from a parametrization, with tensors of other sizes."""
    return not any(".parametrizations." in f".{part.tensor}" for part in group.slices)
