"""The peers of `boundary_dpt.py`: each meets a budget in latency with the least removal.

(a) attentions alone and (b) activations alone, by gate gradients within the type; (c) both in a single ranking of gate
gradients, although the scales of the types differ; (d) BoundaryDPT as published; (d1) its units with our replacements;
(d2) our units with identities; (e) our default; (f) whole blocks by Block Influence; (g) widths by torch-pruning's
isomorphic pruning (arXiv 2407.04616). (a)-(d) and (d2) use identities as replacements, as the published method does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch_pruning as tp
from torch import nn

from benchmarks.data.real import deit_tiny
from benchmarks.data.tiny_imagenet import PRECISION, calibration, data, loss, module, unfused
from benchmarks.runner import plans
from benchmarks.runner.rows import RESULTS
from prunerecover import Budget, Plan, find_units, plan_depth
from prunerecover.boundary.feasible import TYPES, CostLine, layers_of
from prunerecover.boundary.plan_boundary import PUBLISHED
from prunerecover.boundary.search import BoundaryConfig, BoundarySearch
from prunerecover.callbacks.trials.runner import TrialRunner, TrialSettings
from prunerecover.cost.latency import latency_ratio
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.importance.context import DepthContext
from prunerecover.importance.gate_gradient import gate_gradient
from prunerecover.plan.plan import Edit
from prunerecover.session.session import Session

SLACK = 0.02  # by how much the measured share may miss the budget
PAIRS = 40  # interleaved passes behind a measured share: its median is then good to about 1.5 points
TRIAL_IMAGES, HELD_OUT = 500, 1000
TRIALS = RESULTS / "boundary_dpt.trials.jsonl"
IMAGES = torch.randn(8, 3, 224, 224, generator=torch.Generator().manual_seed(0))
_measured: dict[tuple[Edit, ...], float] = {}


def removed_latency(network: nn.Module) -> float:
    """Return the removed share of the dense model's latency: the median of interleaved pairs, batch 8."""
    return 1 - latency_ratio(deit_tiny(), network, IMAGES, pairs=PAIRS, warmup=5).ratio.value


def removed_by(plan: Plan) -> float:
    """Return a plan's removed share of the latency, measured once: the deciding value is the reported value."""
    if plan.edits not in _measured:
        _measured[plan.edits] = removed_latency(pruned(plan, merged=True))
    return _measured[plan.edits]


def pruned(plan: Plan, merged: bool = False) -> nn.Module:
    """Apply a plan to the dense network."""
    return plans.pruned(deit_tiny(), plan, merged)


def least(make: Callable[[int], Plan], sizes: int, budget: float) -> Plan:
    """Return the least plan, of 1 to `sizes` units, whose measured share meets the budget within the slack."""
    low, high = 1, sizes
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if removed_by(make(middle)) >= budget - SLACK else (middle + 1, high)
    return make(low)


def attentions(n: int) -> Plan:
    """Remove attentions alone."""
    return published_planner().plan(Budget(remove={"attention": n}))


def activations(n: int) -> Plan:
    """Remove activations alone."""
    return published_planner().plan(Budget(remove={"activation": n}))


def ranked(n: int) -> Plan:
    """Remove the units with the lowest gate gradients, of any type."""
    return named(one_ranking()[:n], "identity")


@cache
def one_ranking() -> tuple[str, ...]:
    """Rank attentions and activations together."""
    network = deit_tiny()
    units = find_units(network, kinds=TYPES)
    scores = gate_gradient(
        DepthContext(model=network, units=units, batches=calibration(), loss=loss, replace="identity")
    )
    return tuple(unit.name for unit in sorted(units, key=lambda unit: scores[unit.name]))


def blocks(n: int) -> Plan:
    """Remove whole blocks by Block Influence."""
    return plan_depth(deit_tiny(), remove={"block": n}, batches=calibration(), importance="block_influence")


def by_the_book(budget: float) -> Plan:
    """BoundaryDPT: 22 short recoveries, a polynomial surface, gate gradients, identities."""
    return searched(published_planner(), budget, design="axes_and_staircase", surface="polynomial")


def ours(budget: float) -> Plan:
    """Our default: five short recoveries along the budget's line, greedy selection, calibrated replacements."""
    return searched(default_planner(), budget)


def searched(planner: DepthSearch, budget: float, **how: str) -> Plan:
    """Search the splits of a latency budget; trials are kept, and shared between budgets."""
    source, settings = data(TRIAL_IMAGES, HELD_OUT), TrialSettings(trainer=PRECISION)
    runner = TrialRunner(module(unfused(deit_tiny())), source, TRIALS, settings)
    line = line_of(planner, budget)
    return BoundarySearch(planner, line.splits, runner, BoundaryConfig(**how), line.more).run()[1]


def line_of(planner: DepthSearch, budget: float) -> CostLine:
    """Return the splits of a latency budget, and larger ones if a plan misses the budget by more than the slack."""
    shares = (share_of_one(kind) for kind in TYPES)
    return CostLine(layers_of(planner), *shares, budget, removed_by, SLACK)


def renamed(plan: Plan, replace: str) -> Plan:
    """Plan the same units with another replacement."""
    return named(tuple(name for names in plan.removed.values() for name in names), replace)


def named(names: tuple[str, ...], replace: str) -> Plan:
    """Plan exactly the named attentions and activations."""
    others = [unit.name for unit in find_units(deit_tiny(), kinds=TYPES) if unit.name not in names]
    counts = {kind: sum(name.endswith(end) for name in names) for kind, end in zip(TYPES, ("attn", "act"), strict=True)}
    remove = {kind: n for kind, n in counts.items() if n}
    how = {"importance": "random", "replace": replace}  # nothing is left to choose
    return plan_depth(deit_tiny(), remove=remove, batches=calibration(), ignore=others, **how)


def isomorphic_ratio(budget: float) -> float:
    """Return the least share of channels whose removal meets a budget, to 1.4%."""
    return least_ratio(removed_by_width, budget - SLACK)


@cache
def removed_by_width(ratio: float) -> float:
    """Return the removed share of the latency for a share of the channels; measured once for all budgets."""
    return removed_latency(isomorphic(ratio))


def isomorphic(ratio: float) -> nn.Module:
    """Prune a share of the channels with torch-pruning, by Taylor importance among layers of equal shape."""
    network: Any = deit_tiny()
    fused = [block.attn.fused_attn for block in network.blocks]
    for block in network.blocks:
        block.attn.fused_attn = False  # the pruner follows the operations
    heads = {block.attn.qkv: block.attn.num_heads for block in network.blocks}
    pruner = tp.pruner.BasePruner(
        network,
        calibration()[0][0][:1],
        importance=tp.importance.GroupTaylorImportance(),
        global_pruning=True,
        isomorphic=True,
        pruning_ratio=ratio,
        num_heads=heads,
        prune_num_heads=False,
        prune_head_dims=True,
        ignored_layers=[network.head],
        round_to=1,
    )
    network.zero_grad()
    for batch in calibration():
        loss(network, batch).backward()
    pruner.step()
    for block, was in zip(network.blocks, fused, strict=True):
        block.attn.num_heads = pruner.num_heads[block.attn.qkv]
        block.attn.head_dim = block.attn.qkv.out_features // (3 * block.attn.num_heads)
        block.attn.attn_dim = block.attn.qkv.out_features // 3
        block.attn.fused_attn = was
        block.attn.scale = block.attn.head_dim**-0.5
    network.zero_grad()
    return network.eval()  # type: ignore[no-any-return]


def least_ratio(removed: Callable[[float], float], wanted: float, steps: int = 6) -> float:
    """Return the least ratio whose removed share of the cost reaches `wanted`, by `steps` bisections of 0 to 0.9."""
    low, high = 0.0, 0.9
    for _ in range(steps):
        ratio = (low + high) / 2
        low, high = (low, ratio) if removed(ratio) >= wanted else (ratio, high)
    return high


@cache
def share_of_one(kind: str) -> float:
    """Return the measured latency share of a unit of a type, as the mean over six."""
    names = [unit.name for unit in find_units(deit_tiny(), kinds=(kind,))][::2]
    return removed_latency(pruned(named(tuple(names), "zero" if kind == "attention" else "identity"), True)) / len(
        names
    )


@cache
def published_planner() -> DepthSearch:
    """Plan with gate gradients and identities."""
    arguments = {name: PUBLISHED[name] for name in ("importance", "replace", "search")}
    return DepthSearch(Session(deit_tiny(), calibration(), loss=loss), TYPES, DepthConfig(loss=loss, **arguments))


@cache
def default_planner() -> DepthSearch:
    """Plan with the defaults."""
    return DepthSearch(Session(deit_tiny(), calibration()), TYPES)


def plans_of(method: str, budget: float, found: Callable[[str, float], Plan]) -> Plan:
    """Return the plan of a method; `found` returns the plans of earlier methods."""
    if method == "d1 BoundaryDPT's units, our replacements":
        return renamed(found("d BoundaryDPT as published", budget), "calibrated")
    if method == "d2 our units, identities":
        return renamed(found(OURS, budget), "identity")
    return least(*SIZED[method], budget) if method in SIZED else SEARCHED[method](budget)


OURS, WIDTH = "e prunerecover (default)", "g torch-pruning, isomorphic"
SIZED: dict[str, tuple[Callable[[int], Plan], int]] = {
    "a attentions alone": (attentions, 12),
    "b activations alone": (activations, 12),
    "c one ranking of both": (ranked, 23),
    "f whole blocks, Block Influence": (blocks, 11),
}
SEARCHED: dict[str, Callable[[float], Plan]] = {"d BoundaryDPT as published": by_the_book, OURS: ours}
METHODS = (*SIZED, *SEARCHED, "d1 BoundaryDPT's units, our replacements", "d2 our units, identities", WIDTH)
