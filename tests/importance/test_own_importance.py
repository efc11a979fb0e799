"""A user's own importance: as an object, by its registered name, and by import path; refused where it does not fit."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from cases.engine import batches_of, build
from cases.models.habits import Plain
from cases.models.hand_made_groups import cross_entropy, images, resnet_groups, small_resnet
from cases.trainers import fit, prune
from cases.width.own import Favourites, first_stay
from cases.width.plan_width import cnn, labelled_batches
from cases.width.scores import context
from cases.width.width_prune import prune as width_prune
from torch import Tensor

from prunerecover import Budget, Plan, find_units, plan_depth, plan_width
from prunerecover.callbacks import DepthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.importance.context import DepthContext, WidthContext
from prunerecover.importance.first_order import GateTaylor, gate_taylor
from prunerecover.importance.registry import IMPORTANCES, check_finite, compute_importances, register_importance
from prunerecover.importance.streaming import StreamedImportance
from prunerecover.recipes.cli.main import main
from prunerecover.width.allocation.registry import register_allocation


def later_first(context: DepthContext) -> dict[str, float]:
    """Deep units matter less."""
    return {unit.name: -float(place) for place, unit in enumerate(context.units)}


class Favourite:
    """Keeps units with a word in their names."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __call__(self, context: DepthContext) -> dict[str, float]:
        return {unit.name: float(self.word in unit.name) for unit in context.units}


def planned(importance: object, **arguments: object) -> Plan:
    arguments = {"remove": {"attention": 2}, "replace": "zero", **arguments}
    return plan_depth(build("timm"), batches=batches_of("timm"), importance=importance, **arguments)


def test_a_callable_decides_what_goes() -> None:
    names = [unit.name for unit in find_units(build("timm"), kinds=("attention",))]
    plan = planned(later_first)
    assert set(plan.removed["attention"]) == set(names[-2:])
    assert plan.made_by.method == "depth/later_first"
    assert planned(Favourite("blocks.3")).removed["attention"] == tuple(names[:2])


def test_a_name_means_the_callable_that_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(IMPORTANCES, "later_first", raising=False)
    register_importance("later_first", later_first)
    assert planned("later_first").edits == planned(later_first).edits
    assert register_importance("later_first", later_first).name == "later_first"
    with pytest.raises(ValueError, match="name that no importance has, but 'later_first' is taken"):
        register_importance("later_first", Favourite("x"))
    del IMPORTANCES["later_first"]


def test_an_unknown_name_and_what_is_no_callable() -> None:
    with pytest.raises(ValueError, match=r"importance to be one of output_divergence, .* or a callable .*'mine'"):
        planned("mine")
    with pytest.raises(TypeError, match="importance to be a name or a callable .*, but got int"):
        DepthPrune(remove={"attention": 1}, importance=3)


def test_a_callable_decides_in_a_fit_and_a_resumed_run_knows_it(tmp_path: Path) -> None:
    module = Plain()
    trainer = fit(tmp_path, module, prune(importance=later_first, remove={"attention": 1}), epochs=2)
    (plan,) = Ledger.of(module).plans.values()
    assert plan.removed == {"attention": ("blocks.2.attn",)}
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    other = prune(importance=Favourite("blocks"), remove={"attention": 1})
    with pytest.raises(ValueError, match="with the arguments of the run that is resumed .*later_first.*Favourite"):
        fit(tmp_path, Plain(), other, epochs=3, resume=tmp_path / "last.ckpt")


def test_importances_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match=r"importances from 'taylor', but 3 of 4 are not \(b: .*Check the model"):
        check_finite({"a": 1.0, "b": math.nan, "c": math.inf, "d": -math.inf}, "taylor")


@pytest.mark.parametrize("register", [register_importance, register_allocation])
def test_registries_take_a_word_and_something_to_call(register: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="Expected a word as the name of the .*, but got <function later_first"):
        register(later_first, "mine")
    with pytest.raises(TypeError, match="Expected a callable as the .* 'mine', but got NoneType"):
        register("mine", None)
    with pytest.raises(TypeError, match=r"'mine', but got the class Favourite. Pass Favourite\(\.\.\.\)"):
        register("mine", Favourite)


def planned_width(**arguments: Any) -> Plan:
    return plan_width(cnn(), **{"budget": Budget(macs=0.3), "batches": labelled_batches(), **arguments})


def test_an_object_decides_what_goes_in_width() -> None:
    plan = planned_width(importance=Favourites(2), allocation="uniform")
    assert plan.made_by.arguments["importance"] == "Favourites"
    assert all(unit % 2 for edit in plan.edits if edit.op == "narrow" for unit in edit.gone)


@pytest.mark.slow
def test_low_goes_first_by_the_first_and_high_stays_by_the_second() -> None:
    """The same callable in both roles: at a tolerance of 0 the lowest are removed, up to the first protected one."""

    def by_number(context: WidthContext) -> dict[str, Tensor]:
        return {group.name: torch.arange(group.size) - 3.0 for group in context.groups}

    def opposite(context: WidthContext) -> dict[str, Tensor]:
        return {group.name: -scores for group, scores in zip(context.groups, by_number(context).values(), strict=True)}

    plan = planned_width(budget=None, allocation="fair_pruner", tolerance=0.0, importance=[by_number, by_number])
    assert plan.made_by.arguments["importance"] == ["by_number", "by_number"]
    for edit in plan.edits:
        if edit.op == "narrow":
            assert list(edit.gone) == list(range(edit.of // 2))
    none = planned_width(budget=None, allocation="fair_pruner", tolerance=0.0, importance=[by_number, opposite])
    assert not none.edits


@pytest.mark.slow
def test_one_of_ours_called_by_hand_plans_as_its_name_does() -> None:
    wanted = planned_width(importance="gate_taylor").edits
    assert planned_width(importance=gate_taylor).edits == wanted
    assert planned_width(importance=lambda context: gate_taylor(context)).edits == wanted


def test_the_context_is_what_planning_was_given() -> None:
    seen: list[WidthContext] = []

    def look(context: WidthContext) -> dict[str, Tensor]:
        assert not context.model.training
        assert not torch.is_grad_enabled()
        torch.rand(3)
        seen.append(context)
        return first_stay(context)

    def labels(batch: Any) -> Tensor:
        return batch[1] % 2

    model, batches = cnn().train(), labelled_batches()
    state = torch.get_rng_state()
    options = {"loss": cross_entropy, "labels": labels, "seed": 3, "ignore": "layer1.*"}
    plan_width(model, Budget(macs=0.1), batches=batches, importance=look, **options)
    (given,) = seen
    assert (inspect.unwrap(given.loss), given.labels, given.seed) == (cross_entropy, labels, 3)
    assert {id(p) for p in given.model.parameters()} == {id(p) for p in model.parameters()}
    assert len(given.batches) == len(batches)
    assert {group.name for group in given.groups}.isdisjoint({"layer1.0.conv1"})
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_a_streamed_signal_of_the_users_own_shares_the_pass() -> None:
    @StreamedImportance
    def doubled(context: WidthContext) -> GateTaylor:
        """Counts as gate-Taylor does."""
        return GateTaylor(context.groups)

    model, batches, runs = small_resnet(), images(), []
    groups = resnet_groups(model)
    handle = model.register_forward_hook(lambda *_: runs.append(1))
    found = compute_importances(context(model, groups, batches, cross_entropy), ["r_score", doubled, "u_score"])
    assert len(runs) == len(batches)
    handle.remove()
    expected = gate_taylor(context(model, groups, batches, cross_entropy))
    assert all(torch.equal(found[1][name], expected[name]) for name in expected)
    assert doubled.__name__ == "doubled"


def test_the_signature_of_names_is_as_it_was() -> None:
    """Old checkpoints hold this signature."""
    assert width_prune(kinds=["head"], ignore="layer4.*").planning.signature == {
        "allocation": "per_cost",
        "removal": "None",
        "protection": "None",
        "tolerance": "None",
        "kinds": "('head',)",
        "replace": "calibrated",
        "ignore": "('layer4.*',)",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("importance", "name"),
    [
        ("cases.width.own.first_stay", "first_stay"),
        ('{"class_path": "cases.width.own.Favourites", "init_args": {"every": 2}}', "Favourites"),
    ],
)
def test_an_import_path_or_a_class_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, importance: str, name: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["prunerecover"])
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    recipe = {
        "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "limit_train_batches": 1, **quiet},
        "model": {"class_path": "DigitsClassifier", "init_args": {"depth": 2, "embed_dim": 16}},
        "data": {"class_path": "DigitsData"},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    plan_file = tmp_path / "plan.json"
    command = ["plan", "--config", str(tmp_path / "recipe.yaml"), "--calibration", "32", "--output", str(plan_file)]
    assert main([*command, "--method=per_cost", "--method.macs=0.2", f"--method.importance={importance}"]) == 0
    assert Plan.load(plan_file).made_by.arguments["importance"] == name
    assert f"importance='{name}'" in (tmp_path / "plan.md").read_text()
    assert (tmp_path / "plan.scores.safetensors").is_file()


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ([1.0], TypeError, r"Expected '.*' to return \{name: score\}, but got list"),
        ({}, ValueError, r"a score for each of 6, but conv1, .* have none. Return \{name: score\}"),
        (lambda group: torch.zeros(3), ValueError, r"shape \(16,\), one number .* 'conv1', but got shape \(3,\)"),
        (lambda group: ["high"] * group.size, TypeError, r"to return \{name: score\}, but got conv1: list"),
    ],
)
def test_bad_returns(returned: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        planned_width(
            importance=lambda context: {g.name: returned(g) for g in context.groups} if callable(returned) else returned
        )


def test_a_unit_of_depth_without_an_importance() -> None:
    with pytest.raises(ValueError, match=r"to return a score for each of 4, but .* have none"):
        planned(lambda context: {})


def test_negative_scores_are_for_tolerances() -> None:
    def negative(context: WidthContext) -> dict[str, Tensor]:
        return {name: -scores for name, scores in first_stay(context).items()}

    with pytest.raises(ValueError, match="Expected scores that are not negative, but 'conv1' has -16"):
        planned_width(importance=negative)
    assert planned_width(allocation="fair_pruner", importance=[first_stay, negative]).removed


def test_a_loss_that_an_own_importance_needs() -> None:
    def needy(context: WidthContext) -> dict[str, Tensor]:
        context.require_loss("needy")
        return first_stay(context)

    model = small_resnet()
    with pytest.raises(ValueError, match=r"argument loss=f\(model, batch\) for importance='needy', but got none"):
        compute_importances(context(model, resnet_groups(model)), [needy])
    assert planned_width(importance=needy).removed
