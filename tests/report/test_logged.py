"""Content of a report: logged metrics at three moments, figures of the given data, and cards of models."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from cases.models.habits import tiny_vit
from cases.models.tiny import tiny_llama
from huggingface_hub import ModelCard
from matplotlib.figure import Figure
from matplotlib.image import imread
from torch import nn, zeros

from prunerecover import Plan, apply_plan, compare, plan_depth, save_model_card, save_pruned
from prunerecover.model.copies import deep_copy
from prunerecover.report.curves import plot_history
from prunerecover.report.logged import LoggedPoint, is_share, logged_metrics
from prunerecover.report.render import rows


def points(values, *surgeries):
    """Return a point per epoch of a fit, with surgeries at the start of epochs."""
    done = [sum(at <= epoch for at in surgeries) for epoch in range(len(values))]
    return [LoggedPoint(epoch, value, done[epoch], done[epoch], 1) for epoch, value in enumerate(values)]


VALUES = (0.5, 0.9, 0.6, 0.7, 0.85)


def shown(logged):
    layer = nn.Linear(2, 2)
    report = compare(layer, layer, zeros(1, 2), pairs=0).model_copy(update={"logged": logged})
    return rows(report)[-1], report.to_markdown()


def test_moments_lie_around_the_surgeries():
    found = logged_metrics({"val_acc": points(VALUES, 2, 3)}, 2)["val_acc"]
    assert (found.dense, found.after_surgery, found.last) == ((1, 0.9), (3, 0.7), (4, 0.85))


def test_a_validation_before_the_fit_is_the_dense_one():
    row, text = shown(logged_metrics({"val_acc": points(VALUES, 0)}, 1, {"val_acc": 0.95}))
    assert row[1:] == ("95.00", "50.00 after surgery, 85.00 recovered", "-10.00")
    assert "dense is from the validation before the fit;" in text


def test_without_a_dense_value_the_row_says_so():
    row, text = shown(logged_metrics({"val_acc": points(VALUES, 0)}, 1))
    assert row[1:] == ("not validated", "50.00 after surgery, 85.00 recovered", "")
    assert "dense is not known, for it was logged in no validation that the report saw before" in text
    assert "a Trainer that has the fit's PruneReport and no callback that prunes" in text


def test_moments_that_differ_are_said_of_their_metrics():
    rare = [point for point in points(VALUES, 1) if point.epoch > 1]
    _, text = shown(logged_metrics({"val_map": rare, "val_acc": points(VALUES, 1)}, 1))
    assert "before the first surgery (val_map), dense is from the last validation" in text
    assert "in epoch 2 (val_map), after surgery is from" in text
    assert "no callback that prunes" not in text


def test_no_surgery_and_nothing_logged_make_no_row():
    assert logged_metrics({"val_acc": points(VALUES)}, 0) == {}
    assert logged_metrics({}, 1) == {}
    assert logged_metrics({"val_acc": points(VALUES[:1])}, 1) == {}


SHARES = (
    "val_acc valAcc Accuracy BinaryAccuracy acc1 acc@5 top1 val_top_5 mIoU MeanIoU val_miou F1 F1Score BinaryAUROC dice"
)
OTHERS = "DiceLoss val_accumulated val_err_acc_gap LOSS top1_error acc_Loss stop_2 accelerate val_f10 preciseness"


def test_words_tell_shares_and_their_parts_nothing():
    assert [name for name in [*SHARES.split(), "val_acc/dataloader_idx_0"] if not is_share(name, [0.3])] == []
    assert [name for name in OTHERS.split() if is_share(name, [0.3])] == []


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("val_loss", (2.5, 2.0), ("val_loss (logged)", "2.5", "2", "-0.5")),
        ("val_acc", (93.5, 91.0), ("val_acc (logged)", "93.5", "91", "-2.5")),
        ("val_miou", (0.5, 0.625), ("val_miou, % (logged)", "50.00", "62.50", "+12.50")),
    ],
)
def test_shares_are_in_percent_and_nothing_else(name, values, expected):
    row, _ = shown(logged_metrics({name: points(values, 1)}, 1))
    assert row == expected


LONG = "val_multiclass_accuracy_of_facebook_deit_tiny_distilled_patch16_224_in1k"


def rendered(figure: Figure) -> np.ndarray:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    buffer.seek(0)
    return imread(buffer)


def explained(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_history_holds_the_points_the_surgery_and_the_dense_model() -> None:
    points = [(0.0, 0.5), (1.0, 0.25), (2.0, 0.75)]
    figure = plot_history({"pruned": points}, surgeries=[(1, "2 attention"), (2, "1 mlp")], dense=0.8)
    lines = figure.axes[0].lines
    series = next(line for line in lines if line.get_label() == "pruned")
    assert np.asarray(series.get_xydata()).tolist() == [list(point) for point in points]
    assert [line.get_xdata()[0] for line in lines if line.get_linestyle() == ":"] == [1, 2]
    assert next(line for line in lines if line.get_label() == "dense").get_ydata()[0] == 0.8
    assert [text.get_text().replace("\u00a0", " ") for text in figure.axes[0].texts] == ["2 attention", "1 mlp"]
    assert explained(figure) == ["surgery", "dense", "pruned"]


@pytest.mark.parametrize(
    "figure",
    [
        plot_history({"a": [(0, 0.1), (1, 0.9)]}, [(1, "1 mlp")]),
        plot_history(
            {LONG: [(0, 0.1), (1, 0.9)]},
            [(1, "depth: 2 activations, 1 attention, 12 blocks removed " * 2)],
            metric=LONG,
        ),
    ],
    ids=["history", "long history"],
)
def test_nothing_is_cut_off_at_the_edges(figure: Figure) -> None:
    image = rendered(figure)[..., :3]
    assert image.min() < 0.5
    edges = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    assert (edges == 1).all()


Pruned = tuple[nn.Module, nn.Module, Plan]
IMAGES = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def vit() -> Pruned:
    dense = tiny_vit().eval()
    plan = plan_depth(dense, importance="magnitude", remove={"attention": 1}, batches=[IMAGES])
    pruned = deep_copy(dense)
    apply_plan(pruned, plan)
    return dense, pruned, plan


def test_the_card_has_the_table_of_before_and_after(tmp_path: Path, vit: Pruned) -> None:
    dense, pruned, plan = vit
    report = compare(dense, pruned, IMAGES, plan=plan, pairs=0)
    save_pruned(pruned, plan, tmp_path / "my-vit")
    path = save_model_card(tmp_path / "my-vit", report, base="timm/vit", license="apache-2.0", datasets=["imagenet-1k"])
    card = ModelCard.load(path)
    assert card.data.base_model == "timm/vit"
    assert card.data.license == "apache-2.0"
    assert card.data.datasets == ["imagenet-1k"]
    assert card.data.library_name == "prunerecover"
    assert card.text.strip().startswith("# my-vit\n")
    parameters = next(line for line in report.to_markdown().splitlines() if line.startswith("| Parameters"))
    assert parameters in card.text
    assert "## Before and after pruning" in card.text
    assert "### What was removed" in card.text


def test_its_lines_load_the_model(tmp_path: Path, vit: Pruned, monkeypatch: pytest.MonkeyPatch) -> None:
    _, pruned, plan = vit
    save_pruned(pruned, plan, tmp_path / "vit")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name: str(tmp_path / "vit"))
    torch.testing.assert_close(loaded_by(save_model_card(tmp_path / "vit"))(IMAGES), pruned(IMAGES))


def test_a_model_of_transformers_is_loaded_by_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llama, ids = tiny_llama(), torch.arange(3, 35).reshape(8, 4)
    plan = plan_depth(llama, importance="magnitude", remove={"block": 1}, batches=[{"input_ids": ids}], replace="zero")
    apply_plan(llama, plan)
    save_pruned(llama, plan, tmp_path / "hub-id")
    path = save_model_card(tmp_path / "hub-id")
    monkeypatch.chdir(tmp_path)
    torch.testing.assert_close(loaded_by(path)(input_ids=ids).logits, llama(input_ids=ids).logits)


def test_a_network_that_cannot_be_rebuilt_is_asked_for(tmp_path: Path) -> None:
    save_pruned(nn.Linear(2, 2), Plan(), tmp_path / "own")
    assert 'load_pruned(snapshot_download("hub-id"), model=dense)' in save_model_card(tmp_path / "own").read_text()


def test_no_pruned_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no plan\.json\. Is it the right one"):
        save_model_card(tmp_path)


def test_a_card_of_somebody_else_stays(tmp_path: Path, vit: Pruned) -> None:
    _, pruned, plan = vit
    save_pruned(pruned, plan, tmp_path / "vit")
    (tmp_path / "vit" / "README.md").write_text("mine")
    with pytest.raises(FileExistsError, match=r"of somebody else.*Move it away"):
        save_model_card(tmp_path / "vit")
    assert (tmp_path / "vit" / "README.md").read_text() == "mine"


def loaded_by(card: Path) -> nn.Module:
    """Run the card's own lines."""
    code = card.read_text().split("```python\n")[1].split("```")[0]
    scope: dict[str, nn.Module] = {}
    exec(code, scope)
    return scope["model"].eval()
