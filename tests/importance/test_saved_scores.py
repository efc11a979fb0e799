"""Saved scores: later plans of the same network take them and score nothing again; others refuse them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases.models.habits import tiny_vit
from torch import Tensor, nn

from prunerecover import Budget, plan_depth, plan_width, sensitivity
from prunerecover.importance.saved_scores import SavedScores
from prunerecover.sensitivity_table.sensitivity import Sensitivity

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


def not_again(*_: object, **__: object) -> None:
    raise AssertionError("scored again")


def test_scores_read_back_exactly(scored: Sensitivity, file: Path) -> None:
    found, wanted = SavedScores.load(file), scored.saved
    assert found.weights == wanted.weights
    assert found.scores.keys() == wanted.scores.keys() == {"output_divergence", "gate_taylor"}
    for name, by_unit in wanted.scores.items():
        assert found.scores[name].keys() == by_unit.keys()
        assert all(torch.equal(found.scores[name][unit], value) for unit, value in by_unit.items())


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_width_takes_them_for_every_budget(
    vit: nn.Module, file: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = plan_width(vit, Budget(macs=share), batches=LABELLED)
    monkeypatch.setattr("prunerecover.width.planner.compute_importances", not_again)
    assert plan_width(vit, Budget(macs=share), batches=LABELLED, scores=file).edits == wanted.edits


@pytest.mark.parametrize("search", ["one_shot", "greedy"])
def test_depth_takes_them_for_every_budget(vit: nn.Module, file: Path, search: str) -> None:
    for remove in ({"attention": 1}, {"activation": 2}):
        wanted = plan_depth(vit, remove=remove, batches=LABELLED, search=search)
        assert plan_depth(vit, remove=remove, batches=LABELLED, search=search, scores=file).edits == wanted.edits


def test_units_of_the_graph_are_not_ranked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers = [part for _ in range(5) for part in (nn.Linear(64, 64), nn.ReLU())]
    network = nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 4))
    saved = sensitivity(network, batches=LABELLED, kinds=("layer",)).saved
    wanted = plan_depth(network, remove={"layer": 1}, batches=LABELLED, search="greedy")
    monkeypatch.setattr("prunerecover.depth.layers.variants.Variants.rough", rough_of_nothing)
    found = plan_depth(network, remove={"layer": 1}, batches=LABELLED, search="greedy", scores=saved)
    assert found.edits == wanted.edits


def rough_of_nothing(_: object, moves: list[object]) -> list[float]:
    assert not moves, "ranked again"
    return []


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
