"""Prune a model that you already train with Lightning, recover its quality, and get back an ordinary model.

The names below are imported when first used, so `import prunerecover` is fast and the engine alone never imports
Lightning. This module and `__main__` are the front door: they alone know all layers (engine <- callbacks <- recipes).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from prunerecover.version import __version__

if TYPE_CHECKING:
    from prunerecover.apply import apply_plan as apply_plan
    from prunerecover.boundary.accuracy_map import AccuracyMap as AccuracyMap
    from prunerecover.boundary.fit_map import fit_map as fit_map
    from prunerecover.boundary.map_points import MapPoint as MapPoint
    from prunerecover.boundary.plan_boundary import plan_boundary as plan_boundary
    from prunerecover.callbacks import DepthPrune as DepthPrune
    from prunerecover.callbacks import DistillRecover as DistillRecover
    from prunerecover.callbacks import LoRARecover as LoRARecover
    from prunerecover.callbacks import Prune as Prune
    from prunerecover.callbacks import PruneReport as PruneReport
    from prunerecover.callbacks import PruneSchedule as PruneSchedule
    from prunerecover.callbacks import RecoverySchedule as RecoverySchedule
    from prunerecover.callbacks import RoutedLoRARecover as RoutedLoRARecover
    from prunerecover.callbacks import WidthPrune as WidthPrune
    from prunerecover.callbacks.trainers.attach import attach as attach
    from prunerecover.checkpoint.pruned_folder import load_pruned as load_pruned
    from prunerecover.checkpoint.pruned_folder import save_pruned as save_pruned
    from prunerecover.cost.measurement import Measurement as Measurement
    from prunerecover.cost.measurement import measure as measure
    from prunerecover.graph.computation_graph import ComputationGraph as ComputationGraph
    from prunerecover.graph.trace import trace_graph as trace_graph
    from prunerecover.importance.registry import importances as importances
    from prunerecover.importance.registry import register_importance as register_importance
    from prunerecover.model.narrow.attention import NarrowAttention as NarrowAttention
    from prunerecover.plan.budget import Budget as Budget
    from prunerecover.plan.groups import Group as Group
    from prunerecover.plan.plan import Plan as Plan
    from prunerecover.plan.units import Site as Site
    from prunerecover.plan.units import Unit as Unit
    from prunerecover.planning.frontier import frontier as frontier
    from prunerecover.planning.plan_depth import plan_depth as plan_depth
    from prunerecover.planning.plan_pruning import plan_pruning as plan_pruning
    from prunerecover.planning.plan_width import plan_width as plan_width
    from prunerecover.prune_model import prune as prune
    from prunerecover.quality import Quality as Quality
    from prunerecover.recovery.batchnorm import recalibrate_batchnorm as recalibrate_batchnorm
    from prunerecover.recovery.blocks.reconstruct_blocks import reconstruct_blocks as reconstruct_blocks
    from prunerecover.recovery.reconstruction import reconstruct as reconstruct
    from prunerecover.recovery.schedule import recovery_schedule as recovery_schedule
    from prunerecover.report.compare import compare as compare
    from prunerecover.report.model_card import save_model_card as save_model_card
    from prunerecover.report.report import Report as Report
    from prunerecover.routing.omission_sets import plan_omission_sets as plan_omission_sets
    from prunerecover.routing.plan_set import PlanSet as PlanSet
    from prunerecover.routing.routed_causal_lm import RoutedCausalLM as RoutedCausalLM
    from prunerecover.routing.routed_folder import load_routed as load_routed
    from prunerecover.routing.routed_folder import save_routed as save_routed
    from prunerecover.runtimes.export import export as export
    from prunerecover.sensitivity_table.sensitivity import Sensitivity as Sensitivity
    from prunerecover.sensitivity_table.sensitivity import sensitivity as sensitivity
    from prunerecover.sites.find import find_groups as find_groups
    from prunerecover.sites.find import find_sites as find_sites
    from prunerecover.sites.find import find_units as find_units
    from prunerecover.sites.sites import Sites as Sites
    from prunerecover.surgery.apply_edits import Applied as Applied
    from prunerecover.surgery.merging import merge as merge
    from prunerecover.surgery.optimizer_update import update_optimizer as update_optimizer

_HOME = {
    "AccuracyMap": "prunerecover.boundary.accuracy_map",
    "Applied": "prunerecover.surgery.apply_edits",
    "Budget": "prunerecover.plan.budget",
    "ComputationGraph": "prunerecover.graph.computation_graph",
    "DepthPrune": "prunerecover.callbacks",
    "DistillRecover": "prunerecover.callbacks",
    "Group": "prunerecover.plan.groups",
    "LoRARecover": "prunerecover.callbacks",
    "MapPoint": "prunerecover.boundary.map_points",
    "Measurement": "prunerecover.cost.measurement",
    "NarrowAttention": "prunerecover.model.narrow.attention",
    "Plan": "prunerecover.plan.plan",
    "PlanSet": "prunerecover.routing.plan_set",
    "Prune": "prunerecover.callbacks",
    "PruneReport": "prunerecover.callbacks",
    "PruneSchedule": "prunerecover.callbacks",
    "Quality": "prunerecover.quality",
    "RecoverySchedule": "prunerecover.callbacks",
    "Report": "prunerecover.report.report",
    "RoutedCausalLM": "prunerecover.routing.routed_causal_lm",
    "RoutedLoRARecover": "prunerecover.callbacks",
    "Sensitivity": "prunerecover.sensitivity_table.sensitivity",
    "Site": "prunerecover.plan.units",
    "Sites": "prunerecover.sites.sites",
    "Unit": "prunerecover.plan.units",
    "WidthPrune": "prunerecover.callbacks",
    "apply_plan": "prunerecover.apply",
    "attach": "prunerecover.callbacks.trainers.attach",
    "compare": "prunerecover.report.compare",
    "export": "prunerecover.runtimes.export",
    "find_groups": "prunerecover.sites.find",
    "find_sites": "prunerecover.sites.find",
    "find_units": "prunerecover.sites.find",
    "fit_map": "prunerecover.boundary.fit_map",
    "frontier": "prunerecover.planning.frontier",
    "importances": "prunerecover.importance.registry",
    "load_pruned": "prunerecover.checkpoint.pruned_folder",
    "load_routed": "prunerecover.routing.routed_folder",
    "measure": "prunerecover.cost.measurement",
    "merge": "prunerecover.surgery.merging",
    "plan_boundary": "prunerecover.boundary.plan_boundary",
    "plan_depth": "prunerecover.planning.plan_depth",
    "plan_omission_sets": "prunerecover.routing.omission_sets",
    "plan_pruning": "prunerecover.planning.plan_pruning",
    "plan_width": "prunerecover.planning.plan_width",
    "prune": "prunerecover.prune_model",
    "recalibrate_batchnorm": "prunerecover.recovery.batchnorm",
    "reconstruct": "prunerecover.recovery.reconstruction",
    "reconstruct_blocks": "prunerecover.recovery.blocks.reconstruct_blocks",
    "recovery_schedule": "prunerecover.recovery.schedule",
    "register_importance": "prunerecover.importance.registry",
    "save_model_card": "prunerecover.report.model_card",
    "save_pruned": "prunerecover.checkpoint.pruned_folder",
    "save_routed": "prunerecover.routing.routed_folder",
    "trace_graph": "prunerecover.graph.trace",
    "sensitivity": "prunerecover.sensitivity_table.sensitivity",
    "update_optimizer": "prunerecover.surgery.optimizer_update",
}
__all__ = ["__version__", *_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        public = ", ".join(sorted(_HOME))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}. Public names: {public}.")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
