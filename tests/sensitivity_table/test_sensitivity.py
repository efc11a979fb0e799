"""Sensitivity: every figure of the table against the network without the unit, saved scores, and refusals."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.habits import tiny_vit
from cases.models.tiny import tiny_llama
from cases.support.drawn import explained, is_whole
from torch import Tensor, nn

from prunerecover import (
    Budget,
    Sensitivity,
    apply_plan,
    find_groups,
    find_units,
    merge,
    plan_depth,
    plan_width,
    sensitivity,
)
from prunerecover.cost.macs import count_macs
from prunerecover.importance.saved_scores import SavedScores
from prunerecover.sensitivity_table.figure import plot_sensitivity
from prunerecover.sensitivity_table.rows import PARTS, GroupRow, UnitRow


def labelled() -> list[tuple[Tensor, Tensor]]:
    images = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return [(images, torch.arange(16) % 4)]


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    torch.manual_seed(0)
    return tiny_vit().eval()


@pytest.fixture(scope="module")
def found(vit: nn.Module) -> Sensitivity:
    return sensitivity(vit, batches=labelled())


def without(network: nn.Module, kind: str, name: str) -> nn.Module:
    """Return the network without a unit, merged, without a replacement."""
    others = [unit.name for unit in find_units(network, kinds=(kind,)) if unit.name != name]
    plan = plan_depth(network, remove={kind: 1}, ignore=others, batches=labelled(), replace="identity")
    pruned = copy.deepcopy(network)
    apply_plan(pruned, plan)
    merge(pruned)
    return pruned


def test_every_unit_and_group_has_a_row(vit: nn.Module, found: Sensitivity) -> None:
    assert {row.name for row in found.units} == {unit.name for unit in find_units(vit)}
    assert {row.name for row in found.groups} == {group.name for group in find_groups(vit, labelled()[0][0]).groups}
    assert not found.refused


@pytest.mark.parametrize("kind", ["activation", "block"])
def test_savings_are_those_of_the_network_without_it(vit: nn.Module, found: Sensitivity, kind: str) -> None:
    row = next(row for row in found.units if row.kind == kind)
    pruned, image = without(vit, kind, row.name), labelled()[0][0][:1]
    dense = sum(p.numel() for p in vit.parameters())
    assert row.params == pytest.approx(1 - sum(p.numel() for p in pruned.parameters()) / dense)
    assert row.macs == pytest.approx(1 - count_macs(pruned, image) / count_macs(vit, image))


def test_divergences_are_those_that_planning_ranks_by(vit: nn.Module, found: Sensitivity) -> None:
    plan = plan_depth(vit, remove={"attention": 1}, batches=labelled(), search="one_shot")
    importance = plan.evidence["importance"]
    rows = {row.name: row.divergence for row in found.units}
    assert {name: rows[name] for name in importance} == pytest.approx(importance)


def test_what_a_part_holds_is_a_share_of_that_of_all_groups(found: Sensitivity) -> None:
    by_group = found.saved.scores["gate_taylor"]
    total = sum(float(values.sum()) for values in by_group.values())
    for row in found.groups:
        lowest = sorted(by_group[row.name].tolist())
        wanted = [sum(lowest[: int(part * row.size)]) / total for part in PARTS]
        assert list(row.held) == pytest.approx(wanted)


def test_half_of_a_group_saves_what_a_narrowed_network_saves(vit: nn.Module, found: Sensitivity) -> None:
    row = next(row for row in found.groups if row.kind == "neuron")
    others = [group.name for group in found.groups if group.kind == "neuron" and group is not row]
    half = Budget(remove={"neuron": row.size // 2})
    plan = plan_width(vit, half, batches=labelled(), ignore=others, replace="zero")
    pruned, image = copy.deepcopy(vit), labelled()[0][0][:1]
    apply_plan(pruned, plan)
    assert row.macs == pytest.approx(1 - count_macs(pruned, image) / count_macs(vit, image))


def test_the_table_has_what_costs_least_for_what_it_saves_first(found: Sensitivity) -> None:
    lines = [line for line in found.to_markdown().splitlines() if line.startswith("| `")]
    assert len(lines) == len(found.units) + len(found.groups)
    best = min(found.units, key=lambda row: row.divergence / row.macs if row.macs else float("inf"))
    assert lines[0].startswith(f"| `{best.name}` | {best.kind} | {best.params:.1%} | {best.macs:.1%}")


def test_the_figure_has_a_panel_for_each_dimension_which_names_every_point(found: Sensitivity) -> None:
    figure = found.plot()
    rows = [[row.name for row in own if row.macs > 0] for own in (found.units, found.groups)]
    named = [[f"blocks.{label.get_text()}" for label in axes.get_xticklabels()] for axes in figure.axes]
    assert named == rows
    assert {axes.get_xlabel() for axes in figure.axes} == {"blocks"}
    assert len(Sensitivity(found.units, (), found.saved, {}).plot().axes) == 1
    assert all(axes.yaxis.get_ticklocs(minor=True).size == 0 for axes in figure.axes)  # each tick has its number
    assert is_whole(figure)


def test_what_has_no_place_on_a_logarithmic_axis_is_drawn_and_counted() -> None:
    divergences = (0.5, 0.0, -0.1, math.inf, 2.0)
    units = [UnitRow(f"blocks.{i}", "block", 0.1, 0.1, value) for i, value in enumerate(divergences)]
    figure = plot_sensitivity([*units, UnitRow("blocks.5", "block", 0.1, 0.0, 1.0)], ())
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    drawn = {line.get_marker(): list(zip(*line.get_data(), strict=True)) for line in axes.lines}
    assert drawn == {"o": [(0, 0.05), (4, 0.2)], "v": [(1, low), (2, low)], "^": [(3, high)]}
    assert explained(figure) == ["block", "at 0 or below: 2", "cannot go: 1"]
    assert figure.get_suptitle().endswith("1 more save no MACs and are not drawn")


def test_long_lists_take_several_lines_and_nothing_to_draw_is_said() -> None:
    units = [UnitRow(f"layer{i}.conv", "layer", 0.1, 0.1, 1.0 + i) for i in range(130)]
    figure = plot_sensitivity(units, ())
    assert [label.get_text() for axes in figure.axes for label in axes.get_xticklabels()] == [row.name for row in units]
    experts = [GroupRow("experts", "expert", 8, 0.1, 0.0, (0.1, 0.2, 0.3))]
    assert plot_sensitivity((), experts).get_suptitle() == "None of 1 units and groups saves MACs"


def test_labels_are_not_needed_and_the_model_stays_as_it_is(vit: nn.Module) -> None:
    before = {name: value.clone() for name, value in vit.state_dict().items()}
    found = sensitivity(vit, batches=[labelled()[0][0]], kinds=("block", "neuron"))
    assert found.units
    assert found.groups
    assert "width" not in found.refused
    assert all(torch.equal(value, before[name]) for name, value in vit.state_dict().items())


def test_a_language_model_is_scored_by_its_own_loss() -> None:
    ids = torch.arange(3, 99).reshape(8, 12) % 60
    found = sensitivity(tiny_llama(), batches=[{"input_ids": ids, "labels": ids}], kinds=("block", "neuron"))
    assert {row.kind for row in found.units} == {"block"}
    assert {row.kind for row in found.groups} == {"neuron"}


@pytest.mark.parametrize(
    ("how", "message"), [({"kinds": ("attention",)}, "attention"), ({}, "No depth: .* No width: ")]
)
def test_nothing_that_can_go_is_an_error(how: dict[str, Any], message: str) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with pytest.raises(ValueError, match=message):
        sensitivity(network, batches=labelled(), **how)


@pytest.mark.parametrize(("kinds", "named"), [(("wheel",), "'wheel'"), ((), "none")])
def test_unknown_kinds_are_refused(vit: nn.Module, kinds: tuple[str, ...], named: str) -> None:
    with pytest.raises(ValueError, match=f"Expected kinds among block, .*expert, hidden, but got {named}"):
        sensitivity(vit, batches=labelled(), kinds=kinds)


@pytest.fixture(scope="module")
def file(found: Sensitivity, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scores") / "vit.scores.safetensors"
    found.save(path)
    return path


def test_scores_read_back_exactly(found: Sensitivity, file: Path) -> None:
    again, wanted = SavedScores.load(file), found.saved
    assert again.weights == wanted.weights
    assert again.scores.keys() == wanted.scores.keys() == {"output_divergence", "gate_taylor"}
    for name, by_unit in wanted.scores.items():
        assert again.scores[name].keys() == by_unit.keys()
        assert all(torch.equal(again.scores[name][unit], value) for unit, value in by_unit.items())


def not_again(*_: object, **__: object) -> None:
    raise AssertionError("scored again")


@pytest.mark.slow
def test_width_takes_them_for_every_budget(vit: nn.Module, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = plan_width(vit, Budget(macs=0.2), batches=labelled())
    monkeypatch.setattr("prunerecover.width.allocator.compute_importances", not_again)
    assert plan_width(vit, Budget(macs=0.2), batches=labelled(), scores=file).edits == wanted.edits


@pytest.mark.parametrize("search", ["one_shot", "greedy"])
def test_depth_takes_them_for_every_budget(vit: nn.Module, file: Path, search: str) -> None:
    for remove in ({"attention": 1}, {"attention": 2}):  # activations of this network hardly matter: noise decides
        wanted = plan_depth(vit, remove=remove, batches=labelled(), search=search)
        assert plan_depth(vit, remove=remove, batches=labelled(), search=search, scores=file).edits == wanted.edits


@pytest.mark.parametrize(
    ("plan", "how", "message"),
    [
        (plan_width, {"importance": "squared_taylor"}, "by 'squared_taylor', but got those by "),
        (plan_depth, {"importance": "magnitude", "kinds": "block"}, "by 'magnitude', but got those by"),
    ],
)
def test_scores_by_something_else_are_refused(plan: Any, how: Any, message: str, vit: nn.Module, file: Path) -> None:
    with pytest.raises(ValueError, match=message):
        plan(vit, Budget(macs=0.2), batches=labelled(), scores=file, **how)


@pytest.mark.parametrize("plan", [plan_width, plan_depth])
def test_scores_of_other_weights_are_refused(plan: Any, vit: nn.Module, file: Path) -> None:
    changed = tiny_vit().eval()
    changed.load_state_dict({name: value + 1 for name, value in vit.state_dict().items()})
    with pytest.raises(ValueError, match="those of other weights. Score anew"):
        plan(changed, Budget(macs=0.2), batches=labelled(), scores=file)


def test_scores_of_fewer_kinds_are_refused(vit: nn.Module) -> None:
    few = sensitivity(vit, batches=labelled(), kinds=("attention", "head")).saved
    with pytest.raises(ValueError, match=r"'blocks\.0\.mlp' has none .*allow the same kinds"):
        plan_depth(vit, remove={"mlp": 1}, batches=labelled(), scores=few)
    with pytest.raises(ValueError, match="has none"):
        plan_width(vit, Budget(macs=0.2), batches=labelled(), scores=few)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with pytest.raises(FileNotFoundError, match="none.safetensors does not exist"):
        SavedScores.load(tmp_path / "none.safetensors")
    (tmp_path / "text").write_text("scores")
    with pytest.raises(ValueError, match="cannot be read"):
        SavedScores.load(tmp_path / "text")
    save_file({"a": torch.zeros(1)}, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="but got another"):
        SavedScores.load(tmp_path / "weights.safetensors")


def test_something_else_is_refused(vit: nn.Module) -> None:
    with pytest.raises(TypeError, match="to be a path or SavedScores, but got int"):
        plan_width(vit, Budget(macs=0.2), batches=labelled(), scores=3)  # type: ignore[arg-type]
