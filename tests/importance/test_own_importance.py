"""A user's own importance, and saved scores: taken by name, and refused where they do not fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cases.engine import batches_of, build
from cases.models.habits import Plain, tiny_vit
from cases.trainers import fit, prune
from torch import Tensor, nn

from prunerecover import Budget, Plan, find_units, plan_depth, plan_width, sensitivity
from prunerecover.callbacks import DepthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.importance.context import DepthContext
from prunerecover.importance.registry import IMPORTANCES, RegisteredImportance, check_finite, register_importance
from prunerecover.importance.saved_scores import SavedScores
from prunerecover.sensitivity_table.sensitivity import Sensitivity
from prunerecover.width.allocation.registry import register_allocation

ATTENTIONS = [f"blocks.{number}.attn" for number in range(4)]


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


def test_a_unit_without_an_importance() -> None:
    with pytest.raises(ValueError, match=r"to return a score for each of 4, but .* have none"):
        planned(lambda context: {})


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


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_importances_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"importances from 'taylor', but 1 of 2 are not \(b: .*Check the model"):
        check_finite({"a": 1.0, "b": value}, "taylor")


@pytest.mark.parametrize(
    ("found", "told"),
    [(None, "NoneType"), ([1.0], "list"), (dict.fromkeys(ATTENTIONS), "blocks.0.attn: NoneType")],
    ids=["nothing", "list", "no number"],
)
def test_what_is_no_mapping_of_numbers_is_refused(found: object, told: str) -> None:
    with pytest.raises(TypeError, match=rf"Expected 'score' to return {{name: score}}, but got {told}"):
        planned(RegisteredImportance("score", lambda context: found))


@pytest.mark.parametrize("register", [register_importance, register_allocation])
def test_registries_take_a_word_and_something_to_call(register: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="Expected a word as the name of the .*, but got <function later_first"):
        register(later_first, "mine")
    with pytest.raises(TypeError, match="Expected a callable as the .* 'mine', but got NoneType"):
        register("mine", None)
    with pytest.raises(TypeError, match=r"'mine', but got the class Favourite. Pass Favourite\(\.\.\.\)"):
        register("mine", Favourite)


IMAGES = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELLED = [(IMAGES, torch.arange(16) % 4)]


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    torch.manual_seed(0)
    return tiny_vit().eval()


@pytest.fixture(scope="module")
def scored(vit: nn.Module) -> Sensitivity:
    return sensitivity(vit, batches=LABELLED)


@pytest.fixture(scope="module")
def file(scored: Sensitivity, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scores") / "vit.scores.safetensors"
    scored.save(path)
    return path


def test_scores_read_back_exactly(scored: Sensitivity, file: Path) -> None:
    found, wanted = SavedScores.load(file), scored.saved
    assert found.weights == wanted.weights
    assert found.scores.keys() == wanted.scores.keys() == {"output_divergence", "gate_taylor"}
    for name, by_unit in wanted.scores.items():
        assert found.scores[name].keys() == by_unit.keys()
        assert all(torch.equal(found.scores[name][unit], value) for unit, value in by_unit.items())


def not_again(*_: object, **__: object) -> None:
    raise AssertionError("scored again")


@pytest.mark.slow
def test_width_takes_them_for_every_budget(vit: nn.Module, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = plan_width(vit, Budget(macs=0.2), batches=LABELLED)
    monkeypatch.setattr("prunerecover.width.allocator.compute_importances", not_again)
    assert plan_width(vit, Budget(macs=0.2), batches=LABELLED, scores=file).edits == wanted.edits


@pytest.mark.parametrize("search", ["one_shot", "greedy"])
def test_depth_takes_them_for_every_budget(vit: nn.Module, file: Path, search: str) -> None:
    for remove in ({"attention": 1}, {"attention": 2}):  # activations of this network hardly matter: noise decides
        wanted = plan_depth(vit, remove=remove, batches=LABELLED, search=search)
        assert plan_depth(vit, remove=remove, batches=LABELLED, search=search, scores=file).edits == wanted.edits


def changed(vit: nn.Module) -> nn.Module:
    other = tiny_vit().eval()
    other.load_state_dict({name: value + 1 for name, value in vit.state_dict().items()})
    return other


@pytest.mark.parametrize("plan", [plan_width, plan_depth])
def test_scores_of_other_weights_are_refused(plan, vit: nn.Module, file: Path) -> None:
    with pytest.raises(ValueError, match="those of other weights. Score anew"):
        plan(changed(vit), Budget(macs=0.2), batches=LABELLED, scores=file)


def test_scores_by_something_else_are_refused(vit: nn.Module, file: Path) -> None:
    with pytest.raises(ValueError, match="by 'squared_taylor', but got those by "):
        plan_width(vit, Budget(macs=0.2), batches=LABELLED, importance="squared_taylor", scores=file)
    with pytest.raises(ValueError, match="by 'magnitude', but got those by"):
        plan_depth(vit, remove={"block": 1}, batches=LABELLED, importance="magnitude", scores=file)


def test_scores_of_fewer_kinds_are_refused(vit: nn.Module) -> None:
    few = sensitivity(vit, batches=LABELLED, kinds=("attention", "head")).saved
    with pytest.raises(ValueError, match=r"'blocks\.0\.mlp' has none .*allow the same kinds"):
        plan_depth(vit, remove={"mlp": 1}, batches=LABELLED, scores=few)
    with pytest.raises(ValueError, match="has none"):
        plan_width(vit, Budget(macs=0.2), batches=LABELLED, scores=few)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with pytest.raises(FileNotFoundError, match="none.safetensors does not exist"):
        SavedScores.load(tmp_path / "none.safetensors")
    (tmp_path / "text").write_text("scores")
    with pytest.raises(ValueError, match="cannot be read"):
        SavedScores.load(tmp_path / "text")
    tensors: dict[str, Tensor] = {"a": torch.zeros(1)}
    save_file(tensors, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="but got another"):
        SavedScores.load(tmp_path / "weights.safetensors")


def test_something_else_is_refused(vit: nn.Module) -> None:
    with pytest.raises(TypeError, match="to be a path or SavedScores, but got int"):
        plan_width(vit, Budget(macs=0.2), batches=LABELLED, scores=3)  # type: ignore[arg-type]
