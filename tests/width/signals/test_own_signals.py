"""A signal of the user's own: passed, by the name that it was registered with, and by import path."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from cases.models.hand_made_groups import cross_entropy, images, resnet_groups, small_resnet
from cases.sampling import one_in
from cases.width.own import Favourites, first_stay
from cases.width.plan_width import cnn, labelled_batches, vit
from cases.width.scores import context
from cases.width.width_prune import fit, prune
from torch import Tensor

from prunerecover import Budget, Plan, plan_width
from prunerecover.callbacks import WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.importance.saved_scores import SavedScores
from prunerecover.recipes.cli.main import main
from prunerecover.width.arguments import WidthConfig, WidthRule
from prunerecover.width.planner import WidthPlanner
from prunerecover.width.signals.context import WidthContext
from prunerecover.width.signals.first_order import GateTaylor, gate_taylor
from prunerecover.width.signals.registry import SIGNALS, compute_signals, register_signal
from prunerecover.width.signals.streaming import StreamedSignal


def planned(**arguments: Any) -> Plan:
    return plan_width(cnn(), **{"budget": Budget(macs=0.3), "batches": labelled_batches(), **arguments})


def test_a_callable_decides_what_goes() -> None:
    plan = planned(protection=first_stay, allocation="uniform")
    assert plan.made_by.arguments["protection"] == "first_stay"
    for edit in plan.edits:
        if edit.op == "narrow":
            assert list(edit.keep) == list(range(len(edit.keep)))


def test_an_object_decides_what_goes() -> None:
    plan = planned(protection=Favourites(2), allocation="uniform")
    assert plan.made_by.arguments["protection"] == "Favourites"
    assert all(unit % 2 for edit in plan.edits if edit.op == "narrow" for unit in edit.gone)


@pytest.mark.slow
def test_low_goes_first_as_removal_and_high_stays_as_protection() -> None:
    """The same callable in both roles: at a tolerance of 0 the lowest go, up to the first that is also protected."""

    def by_number(context: WidthContext) -> dict[str, Tensor]:
        return {group.name: torch.arange(group.size) - 3.0 for group in context.groups}

    def opposite(context: WidthContext) -> dict[str, Tensor]:
        return {group.name: -scores for group, scores in zip(context.groups, by_number(context).values(), strict=True)}

    plan = planned(budget=None, allocation="tolerance", tolerance=0.0, removal=by_number, protection=by_number)
    assert plan.made_by.arguments["removal"] == plan.made_by.arguments["protection"] == "by_number"
    for edit in plan.edits:
        if edit.op == "narrow":
            assert list(edit.gone) == list(range(edit.of // 2))
    none = planned(budget=None, allocation="tolerance", tolerance=0.0, removal=by_number, protection=opposite)
    assert not none.edits


@pytest.mark.slow
def test_one_of_ours_called_by_hand_plans_as_its_name_does() -> None:
    assert planned(protection=lambda context: gate_taylor(context)).edits == planned().edits
    assert planned(protection=gate_taylor).edits == planned().edits


@pytest.mark.slow
def test_a_name_means_the_callable_that_is_registered() -> None:
    register_signal("stay", first_stay)
    try:
        assert planned(protection="stay").edits == planned(protection=first_stay).edits
        assert planned(protection="stay").made_by.arguments["protection"] == "stay"
        assert register_signal("stay", first_stay).name == "stay"
        with pytest.raises(ValueError, match="Expected a name that no signal has, but 'stay' is taken"):
            register_signal("stay", Favourites(2))
    finally:
        del SIGNALS["stay"]
    with pytest.raises(ValueError, match="name that no signal has, but 'magnitude' is taken"):
        register_signal("magnitude", first_stay)


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
    plan_width(model, Budget(macs=0.1), batches=batches, protection=look, **options)
    (given,) = seen
    assert (given.loss, given.labels, given.seed) == (cross_entropy, labels, 3)
    assert given.model is model
    assert len(given.batches) == len(batches)
    assert {group.name for group in given.groups}.isdisjoint({"layer1.0.conv1"})
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_a_planner_calls_a_callable_once() -> None:
    calls = []

    def counted(context: WidthContext) -> dict[str, Tensor]:
        calls.append(context)
        return first_stay(context)

    planner = WidthPlanner(vit(), batches=labelled_batches(), config=WidthConfig(kinds=("neuron",)))
    for share in (0.1, 0.2):
        planner.plan(Budget(macs=share), WidthRule(protection=counted))
    assert len(calls) == 1
    assert planner.scores(counted, first_stay)[0].keys() == {group.name for group in planner.groups}
    assert len(calls) == 1


def test_a_streamed_signal_of_the_users_own_shares_the_pass() -> None:
    @StreamedSignal
    def doubled(context: WidthContext) -> GateTaylor:
        """Counts as gate-Taylor does."""
        return GateTaylor(context.groups)

    model, batches, runs = small_resnet(), images(), []
    groups = resnet_groups(model)
    handle = model.register_forward_hook(lambda *_: runs.append(1))
    found = compute_signals(context(model, groups, batches, cross_entropy), ["r_score", doubled, "u_score"])
    assert len(runs) == len(batches)
    handle.remove()
    expected = gate_taylor(context(model, groups, batches, cross_entropy))
    assert all(torch.equal(found[1][name], expected[name]) for name in expected)
    assert doubled.__name__ == "doubled"


def test_scores_of_any_kind_of_number_become_float64() -> None:
    model = small_resnet()
    (found,) = compute_signals(context(model, resnet_groups(model)), [first_stay])
    assert {scores.dtype for scores in found.values()} == {torch.float64}


# In a fit


@pytest.mark.slow
def test_a_callable_decides_in_a_fit_and_a_resumed_run_knows_it(tmp_path: Path) -> None:
    steps = {"schedule": {"start": 0, "every": 1, "times": 2}, "allocation": "uniform"}
    module = fit(tmp_path, prune(**steps, protection=first_stay), epochs=2)
    for plan in Ledger.of(module).plans.values():
        assert plan.made_by.arguments["protection"] == "first_stay"
        assert all(max(e.keep) < min(e.gone) for e in plan.edits if e.op == "narrow" and e.gone)
    file = tmp_path / "files" / "epoch=0.ckpt"
    with pytest.raises(ValueError, match="with the arguments of the run that is resumed .*first_stay.*Favourites"):
        fit(tmp_path, prune(**steps, protection=Favourites(2)), epochs=3, ckpt=file)
    again = fit(tmp_path, prune(**steps, protection=first_stay), epochs=2, ckpt=file)
    assert Ledger.of(again).plans.values()


def test_the_signature_of_names_is_as_it_was() -> None:
    """Old checkpoints hold it."""
    assert prune(kinds=["head"], ignore="layer4.*")._signature()["planning"] == {
        "allocation": "per_cost",
        "removal": "None",
        "protection": "None",
        "tolerance": "None",
        "kinds": "('head',)",
        "replace": "calibrated",
        "ignore": "('layer4.*',)",
    }


# On the command line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protection", "name"),
    one_in(
        2,
        [
            ("cases.width.own.first_stay", "first_stay"),
            ('{"class_path": "cases.width.own.Favourites", "init_args": {"every": 2}}', "Favourites"),
            ("fpgm", "fpgm"),
        ],
    ),
)
def test_an_import_path_or_a_class_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protection: str, name: str
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
    assert main([*command, "--method=per_cost", "--method.macs=0.2", f"--method.protection={protection}"]) == 0
    assert Plan.load(plan_file).made_by.arguments["protection"] == name
    assert f"protection='{name}'" in (tmp_path / "plan.md").read_text()
    assert (tmp_path / "plan.scores.safetensors").is_file()


def test_scores_of_two_signals_of_one_name_are_both_kept(tmp_path: Path) -> None:
    from prunerecover.recipes.plan_methods.width import FairPlan

    method = FairPlan(tolerance=0.5, removal=Favourites(2), protection=Favourites(3))
    method._plan(WidthPlanner(vit(), batches=labelled_batches()))
    assert list(method._scores) == ["Favourites, removal", "Favourites, protection"]
    SavedScores("", method._scores).save(tmp_path / "scores.safetensors")


# What is refused


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ([1.0], TypeError, r"Expected '.*' to return \{group name: tensor\}, but got list"),
        (None, TypeError, "but got NoneType"),
        ({}, ValueError, r"a tensor of shape \(16,\) for 'conv1', one number per unit, but got nothing. Return"),
        ({"conv1": torch.zeros(3)}, ValueError, r"shape \(16,\) for 'conv1', .* but got shape \(3,\)\. Return \{group"),
        ({"conv1": [0.0] * 16}, ValueError, r"for 'conv1', .* but got list"),
    ],
)
def test_bad_returns(returned: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        planned(protection=lambda context: returned)


def test_scores_that_are_not_finite() -> None:
    with pytest.raises(ValueError, match="Expected finite scores from '<lambda>', but those of conv1, layer1.0.conv1,"):
        planned(protection=lambda context: {g.name: torch.full((g.size,), torch.nan) for g in context.groups})


def test_negative_scores_are_for_tolerances() -> None:
    def negative(context: WidthContext) -> dict[str, Tensor]:
        return {name: -scores for name, scores in first_stay(context).items()}

    with pytest.raises(ValueError, match="Expected saliencies that are not negative, but 'conv1' has -16"):
        planned(protection=negative)
    assert planned(allocation="tolerance", removal=first_stay, protection=negative).removed


def test_what_is_no_signal() -> None:
    with pytest.raises(ValueError, match=r"Expected argument protection among u_score, .* or a callable .*'mine'"):
        planned(protection="mine")
    with pytest.raises(TypeError, match="Expected argument removal to be a name or a callable .*, but got int"):
        WidthPrune(Budget(macs=0.3), allocation="tolerance", removal=3)
    with pytest.raises(TypeError, match=r"but got the class Favourites\. Pass Favourites\(\.\.\.\)"):
        planned(protection=Favourites)


def test_a_loss_that_an_own_signal_needs() -> None:
    def needy(context: WidthContext) -> dict[str, Tensor]:
        context.require_loss("needy")
        return first_stay(context)

    model = small_resnet()
    with pytest.raises(ValueError, match="Expected a loss, .* but got none for 'needy'"):
        compute_signals(context(model, resnet_groups(model)), [needy])
    assert planned(protection=needy).removed
