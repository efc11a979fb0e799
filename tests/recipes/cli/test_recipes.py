"""Objects in the shipped recipes are built; recipes on the computation graph run, with small networks and images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import yaml
from cases.docs.command_parser import command_parser
from cases.paths import ROOT
from jsonargparse import ArgumentParser

from prunerecover import Plan, Quality
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.recipes.cli.main import main, recipe_names, recipe_path
from prunerecover.recipes.plan_methods.base import PlanningMethod
from prunerecover.recipes.plan_methods.run import method_of


@pytest.fixture(scope="module", autouse=True)
def _short_names() -> None:
    """Recipes use the short names of classes, known to the command line's parser."""
    command_parser()


@pytest.mark.parametrize("name", recipe_names())
def test_callbacks_and_data_of_every_recipe_are_made(name: str) -> None:
    """Without data or weights, which are on the hub, or in a user's folder."""
    recipe = yaml.safe_load(Path(recipe_path(name)).read_text())
    names = [callback["class_path"] for callback in recipe["trainer"]["callbacks"]]
    maker = ArgumentParser(exit_on_error=False)
    maker.add_argument("--callbacks", type=list[pl.Callback])
    maker.add_subclass_arguments(pl.LightningDataModule, "data")
    given = {"callbacks": recipe["trainer"]["callbacks"], "data": recipe["data"]}
    made = maker.instantiate_classes(maker.parse_object(given))
    assert [type(callback).__name__ for callback in made.callbacks] == names
    assert isinstance(made.data, pl.LightningDataModule)
    for callback in made.callbacks:
        decides = isinstance(callback, PruneCallback) and callback.given.said is None
        if decides and not isinstance(callback.budget, Quality):
            method = method_of(made.callbacks, type(callback).__name__)
            assert isinstance(method, PlanningMethod)
            assert (method.config, method.budget, method.calibration) == (
                callback.config,
                callback.budget,
                callback.calibration,
            )


BUDGETS: dict[str, dict[str, Any]] = {
    "resnet56_depth_cifar10": {"remove": {"layer": 2}},
    "convnext_tiny_depth_imagenet": {"budget": {"macs": 0.03}},
}
NETWORKS: dict[str, dict[str, Any]] = {
    "resnet56_depth_cifar10": {"model": "cifar_resnet20", "model_kwargs": {}},
    "convnext_tiny_depth_imagenet": {
        "model": "convnext_atto",
        "pretrained": False,
        "model_kwargs": {"dims": [8, 8, 16, 16], "depths": [1, 1, 2, 1], "num_classes": 4},
        "mixup": 0.0,
        "cutmix": 0.0,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_small_fit_of_the_recipe(name: str, tmp_path: Path, parquet_folder: Path) -> None:
    recipe = yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text())
    recipe["trainer"] |= {"max_epochs": 1, "limit_train_batches": 2, "limit_val_batches": 1, "accelerator": "cpu"}
    recipe["trainer"] |= {"devices": 1, "precision": "32-true", "logger": False, "default_root_dir": str(tmp_path)}
    recipe["trainer"]["callbacks"][0]["init_args"] |= {**BUDGETS[name], "calibration": 8}
    recipe["model"]["init_args"] |= NETWORKS[name]
    recipe["data"]["init_args"] |= {"path": str(parquet_folder), "model": NETWORKS[name]["model"], "batch_size": 4}
    recipe["data"]["init_args"] |= {"num_workers": 0, "val_fraction": 0.0}
    recipe["data"]["init_args"].pop("test_split", None)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["fit", "--config", str(tmp_path / "recipe.yaml")]) == 0
    (plan,) = tmp_path.rglob("pruned/plan.json")
    assert Plan.load(plan).removed
