"""Classes with short names on the command line: modules, data, and methods of `plan`.

LightningCLI finds imported classes by name; a user's classes go by class path.
"""

from __future__ import annotations

from collections.abc import Sequence

from prunerecover.former import warn_of
from prunerecover.recipes.cli.trainer_commands import with_values
from prunerecover.recipes.data.coco_data import CocoData
from prunerecover.recipes.data.digits import DigitsData
from prunerecover.recipes.data.image_data import ImageData
from prunerecover.recipes.data.language.choice_data import ChoiceData
from prunerecover.recipes.data.language.instruction_data import InstructionData
from prunerecover.recipes.data.language.text_data import TextData
from prunerecover.recipes.data.segmentation_data import SegmentationData
from prunerecover.recipes.plan_methods.boundary import BoundaryDPTPlan, BoundaryPlan
from prunerecover.recipes.plan_methods.depth import DepthPlan, GraphPlan
from prunerecover.recipes.plan_methods.frontier import FrontierTable
from prunerecover.recipes.plan_methods.joint import JointPlan
from prunerecover.recipes.plan_methods.pudding import PuddingPlan
from prunerecover.recipes.plan_methods.sensitivity import SensitivityTable
from prunerecover.recipes.plan_methods.sites import SitesTable
from prunerecover.recipes.plan_methods.width import FairPrunerPlan, PerCostPlan, WidthPlan
from prunerecover.recipes.tasks.causal_lm import CausalLM
from prunerecover.recipes.tasks.digits_classifier import DigitsClassifier
from prunerecover.recipes.tasks.image_classifier import ImageClassifier
from prunerecover.recipes.tasks.object_detector import ObjectDetector
from prunerecover.recipes.tasks.segmenter import ImageSegmenter

# Classes that recipes can name without a module.
ADDRESSABLE = (
    ImageClassifier,
    ImageData,
    ImageSegmenter,
    SegmentationData,
    ObjectDetector,
    CocoData,
    CausalLM,
    TextData,
    ChoiceData,
    InstructionData,
    DigitsClassifier,
    DigitsData,
)
CLASSES = {
    "depth": DepthPlan,
    "graph": GraphPlan,
    "boundary": BoundaryPlan,
    "boundary_dpt": BoundaryDPTPlan,
    "width": WidthPlan,
    "per_cost": PerCostPlan,
    "fair_pruner": FairPrunerPlan,
    "joint": JointPlan,
    "pudding": PuddingPlan,
    "sensitivity": SensitivityTable,
    "sites": SitesTable,
    "frontier": FrontierTable,
}
FORMER_METHODS = {"fair": "fair_pruner", "boundary_published": "boundary_dpt"}
METHODS = {name: f"{method.__module__}.{method.__qualname__}" for name, method in CLASSES.items()}


def with_method_class(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with a method's short name replaced by its class path, after `--method` and `--method.help`.

    >>> with_method_class(["--method.help=depth", "--seed", "depth"])
    ['--method.help=prunerecover.recipes.plan_methods.depth.DepthPlan', '--seed', 'depth']

    Raises:
        ValueError: If a value is neither a short name nor a class path.
    """
    return with_values(arguments, ("--method", "--method.help"), _method_class)


def _method_class(name: str) -> str:
    if name in FORMER_METHODS:
        warn_of(f"--method {name}")
        name = FORMER_METHODS[name]
    if name.isidentifier() and name not in METHODS:
        raise ValueError(f"Expected --method to be {', '.join(METHODS)} or a class path, but got '{name}'.")
    return METHODS.get(name, name)
