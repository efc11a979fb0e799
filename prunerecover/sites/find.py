"""Search for the sites of nearly any network: `find_sites`, and thin names for depth and width alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from torch import nn

from prunerecover.depth.layers.family_units import explain_missing_activations, known_by_parts
from prunerecover.depth.layers.removals import Removals
from prunerecover.families.describe import describe, is_supported
from prunerecover.former import renamed, warn_of
from prunerecover.graph.branches import BranchFinder
from prunerecover.graph.trace import Traced, trace
from prunerecover.model.arguments import check_patterns, matches, patterns_of
from prunerecover.model.batches import ModelInputs
from prunerecover.model.checks import check_cuttable, check_network
from prunerecover.model.evaluation import evaluating, ordinary_arithmetic, uncompiled
from prunerecover.model.paths import unwrap
from prunerecover.plan.groups import Group
from prunerecover.plan.kinds import DEPTH_KINDS, FAMILY_KINDS, KINDS, WIDTH_KINDS, kinds_among
from prunerecover.plan.units import Site, Unit
from prunerecover.sites.depth import units_by_parts
from prunerecover.sites.example import example_of, needed
from prunerecover.sites.sites import Sites
from prunerecover.sites.width import refused_groups, with_costs
from prunerecover.width.groups.discovery import FOUND_KINDS, look_for_groups
from prunerecover.width.groups.found import FoundGroups, without
from prunerecover.width.groups.refusals import nothing_found


def find_sites(
    model: nn.Module,
    batches: Any = None,
    kinds: str | Sequence[str] | None = None,
    ignore: str | Sequence[str] = (),
    *,
    include_strided: bool = False,
) -> Sites[Site]:
    """List the sites of a network, and the reasons for the refusal of further parts.

    Units of depth go as a whole. Supported families (see the support matrix) are known by their parts. In all further
    networks, a forward pass is watched: a branch added to a stream of equal shape is an attention or an MLP, a
    repeated child of one container that passes on a stream of constant shape is a block, and a linear or convolution
    outside attentions and the head is a layer. Groups of width are indices of parameters tied together in a forward
    pass; groups do not depend on class names.

    Args:
        model: Network, wrapped or not, on any device; bit-identical afterwards.
        batches: Calibration batches, of which the first is run, or one batch alone. None: the `dummy_inputs` of the
            model; supported families need no batch for units of depth, but report 0 MACs without.
        kinds: Kinds among "block", "attention", "mlp", "activation", "layer", "channel", "head", "head_dim" (dimensions
            of all heads of an attention), "neuron", "expert" and "hidden". None: the default kinds of `plan_depth` and
            `plan_width`.
        ignore: Shell patterns of names of sites that stay, e.g. "layer4.*".
        include_strided: Switch for layers that change spatial dimensions, with a pooling as the replacement.

    Raises:
        ValueError: If a kind is unknown, the model has no parameters, an example is missing or fails in the model, a
            family has no removable activations, or a pattern in `ignore` matches no site or all sites.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> sites = find_sites(net, torch.zeros(1, 4), ("layer", "neuron"))
    >>> [(site.name, site.kind, site.size, site.params) for site in sites]
    [('0', 'layer', 1, 40), ('2', 'layer', 1, 72), ('0', 'neuron', 8, 104), ('2', 'neuron', 8, 88)]
    """
    return _look(model, batches, kinds, ignore, include_strided=include_strided)[0]


def find_units(
    model: nn.Module,
    batches: Any = None,
    kinds: str | Sequence[str] = FAMILY_KINDS,
    *,
    include_strided: bool = False,
    example_inputs: Any = None,
) -> Sites[Unit]:
    """List the units of depth alone, by `find_sites`.

    Args:
        model: Network, as in `find_sites`.
        batches: Batches or a batch, as in `find_sites`.
        kinds: Kinds among "block", "attention", "mlp", "activation" and "layer".
        include_strided: Switch for layers that change spatial dimensions.
        example_inputs: Former name of `batches`, as is the former order `(model, kinds, batches)`.

    >>> import timm
    >>> vit = timm.create_model("vit_tiny_patch16_224", depth=2)
    >>> [unit.name for unit in find_units(vit, kinds=("attention", "activation"))]
    ['blocks.0.attn', 'blocks.0.mlp.act', 'blocks.1.attn', 'blocks.1.mlp.act']
    """
    batches = renamed("find_units(example_inputs=)", example_inputs, batches)
    if _are_kinds(batches):
        warn_of("find_units(model, kinds, batches)")
        batches, kinds = (None if kinds is FAMILY_KINDS else kinds), batches
    kinds = kinds_among(kinds, DEPTH_KINDS, " for a plan in depth")
    return cast("Sites[Unit]", find_sites(model, batches, kinds, include_strided=include_strided))


def find_groups(
    model: nn.Module,
    batches: Any = None,
    kinds: str | Sequence[str] = FOUND_KINDS,
    ignore: str | Sequence[str] = (),
    *,
    example_inputs: Any = None,
) -> Sites[Group]:
    """List the groups of width alone, by `find_sites`.

    Args:
        model: Network, as in `find_sites`.
        batches: Batches or a batch, as in `find_sites`.
        kinds: Kinds among "channel", "head", "head_dim", "neuron", "expert" and "hidden".
        ignore: Shell patterns of names of groups that stay.
        example_inputs: Former name of `batches`.

    Raises:
        ValueError: Also if there is no group of the requested kinds.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [(group.name, group.size) for group in find_groups(net, torch.zeros(1, 4))]
    [('0', 8)]
    """
    kinds = kinds_among(kinds, WIDTH_KINDS)
    sites, found = _look(model, renamed("find_groups(example_inputs=)", example_inputs, batches), kinds, ignore)
    if not sites and not sites.linked:
        raise nothing_found(unwrap(model), kinds, found)
    return cast("Sites[Group]", sites)


@ordinary_arithmetic()
def _look(
    model: nn.Module,
    batches: Any,
    kinds: str | Sequence[str] | None,
    ignore: str | Sequence[str],
    *,
    include_strided: bool = False,
) -> tuple[Sites[Site], FoundGroups]:
    """Return the sites, and the groups of width with the trace for explaining refusals."""
    network, ignore = unwrap(model), patterns_of(ignore)
    check_network(network)
    check_cuttable(network)
    asked = _kinds_of(network, kinds)
    example = None if batches is None else example_of(network, batches)
    depth, width = ([kind for kind in asked if kind in every] for every in (DEPTH_KINDS, WIDTH_KINDS))
    traced = _traced(network, example, depth, width)
    units, refused = _depth(network, example, depth, traced, explained=kinds is not None, strided=include_strided)
    watched = traced if set(width) - {"expert"} else None
    found = look_for_groups(network, watched, width).of_kinds(width) if width else FoundGroups()
    names = [*(unit.name for unit in units), *(group.name for group in found.named), *refused]
    check_patterns(ignore, names, "sites")
    units = tuple(unit for unit in units if not matches(unit.name, ignore))
    found = without(found, ignore)
    groups, stay = _groups(network, example if traced is None else traced.inputs, width, found)
    sites = (*units, *groups)
    if ignore and not sites and not found.linked:
        raise ValueError(f"Expected some sites outside ignore={list(ignore)}, but all {len(names)} are ignored.")
    for name, reason in stay.items():
        refused[name] = f"{refused[name].removesuffix('.')}. {reason}" if name in refused else reason
    refused = {name: why for name, why in refused.items() if not matches(name, ignore)}
    return Sites(sites, refused, replace(found, traced=None)), found


def _kinds_of(model: nn.Module, kinds: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the kinds to look for: the requested kinds, or the default kinds of plans."""
    if kinds is None:
        return (*(FAMILY_KINDS if is_supported(model) else DEPTH_KINDS), *FOUND_KINDS)
    return kinds_among(kinds, KINDS)


def _traced(model: nn.Module, example: ModelInputs | None, depth: Sequence[str], width: Sequence[str]) -> Traced | None:
    """Return the trace of a forward pass, or None where parts of a known family tell enough."""
    by_parts = not depth or known_by_parts(model, depth)
    kinds = depth if not by_parts else width if set(width) - {"expert"} else ()
    return trace(model, needed(model, example, kinds), "batches") if kinds else None


def _depth(
    model: nn.Module,
    example: ModelInputs | None,
    kinds: Sequence[str],
    traced: Traced | None,
    *,
    explained: bool,
    strided: bool,
) -> tuple[tuple[Unit, ...], dict[str, str]]:
    """Return units of depth, and refusals by name."""
    if not kinds:
        return (), {}
    if traced is None or known_by_parts(model, kinds):
        if explained and set(kinds) != set(FAMILY_KINDS) and "activation" in kinds:
            explain_missing_activations(model)
        return units_by_parts(model, kinds, example)
    with uncompiled(), evaluating(model):
        removals = Removals(model, traced, kinds, include_strided=strided)
    return removals.units, removals.refused


def _groups(
    model: nn.Module, example: ModelInputs | None, kinds: Sequence[str], found: FoundGroups
) -> tuple[tuple[Group, ...], dict[str, str]]:
    """Return groups of width with their costs, and refusals by name."""
    if not kinds:
        return (), {}
    blocks: list[str] = []
    if is_supported(model):
        blocks = [block.path for block in describe(model).blocks]
    elif found.traced is not None:
        blocks = [block.name for block in BranchFinder(found.traced.model, found.traced.graph).blocks()]
    return with_costs(model, found, example, blocks), refused_groups(found, kinds)


def _are_kinds(value: Any) -> bool:
    """Whether a value is kinds of sites, given in the place of batches."""
    return isinstance(value, str) or (
        isinstance(value, tuple | list) and bool(value) and all(isinstance(kind, str) for kind in value)
    )
