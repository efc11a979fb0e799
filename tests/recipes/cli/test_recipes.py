"""What the shipped recipes name is made: callbacks and data of all, networks of those that need nothing of the hub."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import pytest
import yaml
from cases.docs.command_parser import command_parser
from jsonargparse import ArgumentParser

from prunerecover import Quality
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.recipes.cli.main import recipe_names, recipe_path
from prunerecover.recipes.plan_methods.base import PlanningMethod
from prunerecover.recipes.plan_methods.run import method_of


@pytest.fixture(scope="module", autouse=True)
def _short_names() -> None:
    """The command line's parser knows them; classes are given so in recipes."""
    command_parser()


@pytest.mark.parametrize("name", recipe_names())
def test_callbacks_and_data_of_every_recipe_are_made(name: str) -> None:
    """Without the data themselves, or weights: those are on the hub, or in a folder of the user's."""
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


def built_without_weights() -> list[str]:
    """Recipes whose network is one of timm or torchvision by name, which builds it without its weights."""
    models = {name: yaml.safe_load(Path(recipe_path(name)).read_text())["model"] for name in recipe_names()}
    local = ("timm/", "retinanet", "ssdlite", "vgg", "densenet", "cifar_")
    return [n for n, own in models.items() if str(own.get("init_args", {}).get("model")).startswith(local)]


@pytest.mark.slow
@pytest.mark.parametrize("name", built_without_weights())
def test_modules_of_recipes_are_made(name: str) -> None:
    recipe = yaml.safe_load(Path(recipe_path(name)).read_text())["model"]
    model = recipe["init_args"]["model"].removeprefix("timm/")  # timm's own name, in place of the hub's
    recipe["init_args"] |= {"model": model, "pretrained": False}
    recipe["init_args"].get("model_kwargs", {}).pop("checkpoint_path", None)
    recipe["init_args"].pop("label_map", None)  # a file of the data
    maker = ArgumentParser(exit_on_error=False)
    maker.add_subclass_arguments(pl.LightningModule, "model")
    made = maker.instantiate_classes(maker.parse_object({"model": recipe})).model
    assert sum(parameter.numel() for parameter in made.parameters()) > 10_000
