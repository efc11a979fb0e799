"""Classes with short names on the command line: modules, data, and methods of `plan`.

LightningCLI finds imported classes by name; a user's classes go by class path.
"""

from __future__ import annotations

from collections.abc import Sequence
from pkgutil import resolve_name

from prunerecover.former import warn_of
from prunerecover.recipes.cli.trainer_commands import with_values

RECIPES = "prunerecover.recipes."
# Classes that recipes can name without a module.
ADDRESSABLE: tuple[type, ...] = tuple(
    resolve_name(f"{RECIPES}{path}")
    for path in (
        "tasks.image_classifier.ImageClassifier",
        "data.image_data.ImageData",
        "tasks.segmenter.ImageSegmenter",
        "data.segmentation_data.SegmentationData",
        "tasks.object_detector.ObjectDetector",
        "data.coco_data.CocoData",
        "tasks.causal_lm.CausalLM",
        "data.language.text_data.TextData",
        "data.language.choice_data.ChoiceData",
        "data.language.instruction_data.InstructionData",
        "tasks.digits_classifier.DigitsClassifier",
        "data.digits.DigitsData",
    )
)
METHODS = {
    name: f"{RECIPES}plan_methods.{path}"
    for name, path in {
        "depth": "depth.DepthPlan",
        "graph": "depth.GraphPlan",
        "boundary": "boundary.BoundaryPlan",
        "boundary_dpt": "boundary.BoundaryDPTPlan",
        "width": "width.WidthPlan",
        "per_cost": "width.PerCostPlan",
        "fair_pruner": "width.FairPrunerPlan",
        "joint": "joint.JointPlan",
        "pudding": "pudding.PuddingPlan",
        "sensitivity": "tables.SensitivityTable",
        "sites": "tables.SitesTable",
        "frontier": "tables.FrontierTable",
    }.items()
}
CLASSES: dict[str, type] = {name: resolve_name(path) for name, path in METHODS.items()}
FORMER_METHODS = {"fair": "fair_pruner", "boundary_published": "boundary_dpt"}


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
