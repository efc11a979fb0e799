"""The segmenter is a linear map of the transformer's patch tokens, and images stay with their annotations."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from cases.files.scenes import opened, write_scenes
from cases.sampling import one_in
from torch.nn import functional as F

from prunerecover.callbacks import DepthPrune, DistillRecover
from prunerecover.callbacks.trials.runner import TrialSettings
from prunerecover.recipes.data.segmentation_data import IGNORED, SegmentationData
from prunerecover.recipes.plan_methods.base import PlanMethod
from prunerecover.recipes.plan_methods.boundary import BoundaryDPTPlan
from prunerecover.recipes.plan_methods.depth import DepthPlan
from prunerecover.recipes.plan_methods.run import plan_with
from prunerecover.recipes.tasks.segmenter import ImageSegmenter, per_class_table

TINY = {"patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
SHORT = TrialSettings(metric="val_miou", trainer={"limit_train_batches": 1})
QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}


def tiny(classes: int = 3, **kwargs: object) -> ImageSegmenter:
    torch.manual_seed(0)
    return ImageSegmenter(classes, image_size=16, model_kwargs=dict(TINY), **kwargs)


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    return write_scenes(tmp_path / "scenes")


def test_mean_iou_counts_scored_pixels_only() -> None:
    module = tiny()
    prediction, target = torch.randint(3, (2, 16, 16)), torch.randint(3, (2, 16, 16))
    target[:, :5] = IGNORED
    module.val_metrics.update(F.one_hot(prediction, 3).permute(0, 3, 1, 2).float(), target)
    found = module.val_metrics.compute()
    scored = target != IGNORED
    ious = [
        ((prediction == c) & (target == c)).sum() / (((prediction == c) & scored) | (target == c)).sum()
        for c in range(3)
    ]
    torch.testing.assert_close(found["val_miou"], torch.stack(ious).mean())
    torch.testing.assert_close(found["val_pixel_accuracy"], (prediction == target)[scored].float().mean())


def test_classes_are_named_in_the_table_of_a_test(scenes: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = ImageSegmenter(["a", "b", "c", "d", "e"], image_size=16, model_kwargs=dict(TINY))
    with caplog.at_level("INFO"):
        (found,) = pl.Trainer(**QUIET).test(module, opened(scenes, stage="test"), verbose=False)
    rows = [line.split("|")[1:-1] for line in caplog.text.splitlines() if line.startswith("| ")][1:]
    assert [name.strip() for name, *_ in rows] == ["a", "b", "c", "d", "e"]
    ious = [float(iou) for _, iou, *_ in rows]
    assert sum(ious) / 5 == pytest.approx(100 * found["test_miou"], abs=0.05)
    assert sum(float(share) for *_, share in rows) == pytest.approx(100, abs=0.3)


def test_table_counts_intersections_and_unions() -> None:
    counts = torch.tensor([[6, 2], [1, 11]])
    _, _, road, sky = per_class_table(counts, ["road", "sky"]).splitlines()
    assert (road, sky) == ("| road | 66.7 | 75.0 | 40.0 |", "| sky | 78.6 | 91.7 | 60.0 |")


def test_annotations_of_other_classes_are_refused(scenes: Path) -> None:
    with pytest.raises(ValueError, match=r"annotations of the classes 0 to 2, but got class 4. Set classes=5, or say"):
        pl.Trainer(max_epochs=1, **QUIET).fit(tiny(3), opened(scenes))


def test_head_for_other_classes_is_refused() -> None:
    sizes = {"hidden_sizes": [8] * 4, "depths": [1] * 4, "decoder_hidden_size": 8, "num_labels": 7}
    module = ImageSegmenter(5, "segformer", model_kwargs=sizes)
    with pytest.raises(ValueError, match="a network that scores 5 classes, but it scores 7. Set classes=7, or leave"):
        module(torch.randn(1, 3, 32, 32))


@pytest.mark.slow
def test_pruned_segmenter_scores_the_same_from_its_checkpoint(scenes: Path, tmp_path: Path) -> None:
    prune = DepthPrune(remove={"attention": 1, "activation": 1}, calibration=8, schedule={"start": 1})
    trainer = pl.Trainer(max_epochs=2, default_root_dir=tmp_path, callbacks=[prune, DistillRecover()], **QUIET)
    module = tiny(5)
    trainer.fit(module, opened(scenes))
    assert len(module.network.backbone.blocks) == 3
    before = trainer.validate(module, opened(scenes), verbose=False)[0]
    path = trainer.checkpoint_callback.best_model_path
    fresh = pl.Trainer(callbacks=[DepthPrune(remove={"attention": 1, "activation": 1})], **QUIET)
    after = fresh.validate(tiny(5), opened(scenes), ckpt_path=path, verbose=False, weights_only=False)[0]
    assert after == pytest.approx(before)
    assert sum(p.numel() for p in module.network.parameters()) < sum(p.numel() for p in tiny(5).network.parameters())


@pytest.mark.data
def test_real_street_scenes(data_root: Path) -> None:
    """DeiT-Tiny learns CamVid's classes well above chance within a minute, and goes on after surgery."""
    data = SegmentationData(
        str(data_root / "data" / "camvid"), image_size=128, ignore=11, limit_train=48, limit_val=24, num_workers=0
    )
    pl.seed_everything(0)
    name = f"local-dir:{data_root}/models/deit_tiny_patch16_224"
    module = ImageSegmenter(11, name, pretrained=True, image_size=128, learning_rate=3e-4)
    remove = {"attention": 1, "activation": 1}
    prune = DepthPrune(remove=remove, calibration=16, search="one_shot", schedule={"start": 3})
    trainer = pl.Trainer(max_epochs=5, enable_checkpointing=False, callbacks=[prune, DistillRecover()], **QUIET)
    trainer.fit(module, data)
    scores = trainer.validate(module, data, verbose=False)[0]
    assert scores["val_pixel_accuracy"] > 0.6
    assert scores["val_miou"] > 0.2


METHODS = [DepthPlan(remove={"attention": 1}, importance="gate_gradient"), BoundaryDPTPlan(2, trials=SHORT)]


@pytest.mark.parametrize("method", one_in(2, METHODS))
def test_plans_are_scored_by_the_loss_of_the_segmenter(scenes: Path, tmp_path: Path, method: PlanMethod) -> None:
    """Scenes have a class per pixel, and the network is only the backbone."""
    module = tiny(5)
    planned = module.network.backbone
    before = {name: value.clone() for name, value in planned.state_dict().items()}
    plan = plan_with(method, module, opened(scenes), 8, None, None, torch.device("cpu"), tmp_path / "plan.json")
    assert plan.made_by.method.endswith("gate_gradient")
    assert plan.edits
    assert all(torch.equal(value, before[name]) for name, value in planned.state_dict().items())
    scores = plan.evidence["importance"].values()
    assert len(set(scores)) == len(scores)
