"""Recipe with a small CIFAR ResNet on digits, and plans of it by the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import yaml

from prunerecover import Plan
from prunerecover.recipes.cli.main import main
from prunerecover.recipes.tasks.image_classifier import ImageClassifier

IMAGE = torch.zeros(1, 1, 8, 8)
NETWORK: dict[str, Any] = {"model": "cifar_resnet20", "num_classes": 10, "model_kwargs": {"in_chans": 1}}
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
RECIPE = {
    "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "limit_train_batches": 1, **QUIET},
    "model": {"class_path": "ImageClassifier", "init_args": NETWORK},
    "data": {"class_path": "DigitsData"},
}
FAIR = ["--method", "fair_pruner", "--method.tolerance", "0.2"]


def dense() -> ImageClassifier:
    """Return the recipe's module."""
    pl.seed_everything(1, verbose=False)
    return ImageClassifier(**NETWORK)


def run(folder: Path, *options: str, recipe: dict[str, Any] = RECIPE, output: str = "plan.json") -> Plan:
    """Plan by the command line."""
    assert command(folder, *options, recipe=recipe, output=output) == 0
    return Plan.load(folder / output)


def command(folder: Path, *options: str, recipe: dict[str, Any] = RECIPE, output: str = "plan.json") -> int:
    """Return the exit status of planning by the command line."""
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    start = ["plan", "--config", str(folder / "recipe.yaml"), "--calibration", "48"]
    return main([*start, *options, "--output", str(folder / output)])
