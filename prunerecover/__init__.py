"""Prune a model that you already train with Lightning, recover its quality, and get back an ordinary model.

The names below are imported when first used, so `import prunerecover` is fast and the engine alone never imports
Lightning. This module and `__main__` are the front door: they alone know all layers (engine <- callbacks <- recipes).
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from prunerecover.accuracy_map import AccuracyMap as AccuracyMap
    from prunerecover.boundary import plan_boundary as plan_boundary
    from prunerecover.budget import Budget as Budget
    from prunerecover.callbacks import DepthPrune as DepthPrune
    from prunerecover.callbacks import DistillRecover as DistillRecover
    from prunerecover.callbacks import LoRARecover as LoRARecover
    from prunerecover.callbacks import PruneReport as PruneReport
    from prunerecover.callbacks import PruneSchedule as PruneSchedule
    from prunerecover.callbacks import WidthPrune as WidthPrune
    from prunerecover.checkpoint import load_pruned as load_pruned
    from prunerecover.checkpoint import save_pruned as save_pruned
    from prunerecover.comparison import compare as compare
    from prunerecover.depth import plan_depth as plan_depth
    from prunerecover.map_fitting import fit_map as fit_map
    from prunerecover.map_points import MapPoint as MapPoint
    from prunerecover.measure import Measurement as Measurement
    from prunerecover.measure import measure as measure
    from prunerecover.merge import merge as merge
    from prunerecover.optimizers import update_optimizer as update_optimizer
    from prunerecover.plan import Plan as Plan
    from prunerecover.plan import PlanSet as PlanSet
    from prunerecover.report import Report as Report
    from prunerecover.surgery import Applied as Applied
    from prunerecover.surgery import apply_plan as apply_plan
    from prunerecover.units import Unit as Unit
    from prunerecover.units import find_units as find_units
    from prunerecover.width.batchnorm import recalibrate_batchnorm as recalibrate_batchnorm
    from prunerecover.width.discovery import find_groups as find_groups
    from prunerecover.width.groups import Group as Group
    from prunerecover.width.planning import plan_width as plan_width
    from prunerecover.width.reconstruction import reconstruct as reconstruct

_HOME = {
    "AccuracyMap": "prunerecover.accuracy_map",
    "Applied": "prunerecover.surgery",
    "Budget": "prunerecover.budget",
    "DepthPrune": "prunerecover.callbacks",
    "DistillRecover": "prunerecover.callbacks",
    "Group": "prunerecover.width.groups",
    "LoRARecover": "prunerecover.callbacks",
    "MapPoint": "prunerecover.map_points",
    "Measurement": "prunerecover.measure",
    "Plan": "prunerecover.plan",
    "PlanSet": "prunerecover.plan",
    "PruneReport": "prunerecover.callbacks",
    "PruneSchedule": "prunerecover.callbacks",
    "Report": "prunerecover.report",
    "Unit": "prunerecover.units",
    "WidthPrune": "prunerecover.callbacks",
    "apply_plan": "prunerecover.surgery",
    "compare": "prunerecover.comparison",
    "find_groups": "prunerecover.width.discovery",
    "find_units": "prunerecover.units",
    "fit_map": "prunerecover.map_fitting",
    "load_pruned": "prunerecover.checkpoint",
    "measure": "prunerecover.measure",
    "merge": "prunerecover.merge",
    "plan_boundary": "prunerecover.boundary",
    "plan_depth": "prunerecover.depth",
    "plan_width": "prunerecover.width.planning",
    "recalibrate_batchnorm": "prunerecover.width.batchnorm",
    "reconstruct": "prunerecover.width.reconstruction",
    "save_pruned": "prunerecover.checkpoint",
    "update_optimizer": "prunerecover.optimizers",
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


class _Package(ModuleType):
    """Keeps `prunerecover.merge` and `prunerecover.measure` the functions.

    Importing the submodule of the same name binds it on the package; without this, what `from prunerecover import
    merge` gives would depend on what was imported before.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
