"""The segmenter is a linear map of the transformer's patch tokens; its data keep images and annotations together."""

from __future__ import annotations

import io
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cases.sampling import one_in
from PIL import Image
from torch.nn import functional as F

from prunerecover.callbacks import DepthPrune, DistillRecover
from prunerecover.callbacks.trials.runner import TrialSettings
from prunerecover.recipes.data.segmentation_data import IGNORED, SegmentationData
from prunerecover.recipes.plan_methods.base import PlanMethod
from prunerecover.recipes.plan_methods.boundary import PublishedBoundaryPlan
from prunerecover.recipes.plan_methods.depth import DepthPlan
from prunerecover.recipes.plan_methods.run import plan_with
from prunerecover.recipes.tasks.segmenter import ImageSegmenter

TINY = {"patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
SHORT = TrialSettings(metric="val_miou", trainer={"limit_train_batches": 1})
QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}


def tiny(classes: int = 3, **kwargs: object) -> ImageSegmenter:
    torch.manual_seed(0)
    return ImageSegmenter(classes, image_size=16, model_kwargs=dict(TINY), **kwargs)


def png(pixels: np.ndarray) -> dict[str, object]:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return {"bytes": buffer.getvalue(), "path": None}


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """8 training and 4 validation scenes of 20 x 20 pixels; a pixel's red is 40 times its annotation (0-4)."""
    rng = np.random.default_rng(0)
    for name, n in (("train", 8), ("validation", 4)):
        annotations = [np.kron(rng.integers(0, 5, (5, 5)), np.ones((4, 4), int)).astype(np.uint8) for _ in range(n)]
        images = [np.stack([40 * a, a, a], -1) for a in annotations]
        columns = {"image": [png(i) for i in images], "annotation": [png(a) for a in annotations]}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    return tmp_path


def opened(path: Path, **kwargs: object) -> SegmentationData:
    data = SegmentationData(str(path), **{"image_size": 16, "batch_size": 4, "num_workers": 0, **kwargs})
    data.prepare_data()
    data.setup("fit")
    return data


def test_scores_are_a_linear_map_of_the_patch_tokens() -> None:
    network = tiny().network.eval()
    images = torch.randn(2, 3, 16, 16)
    tokens = network.backbone.forward_features(images)[:, 1:]
    by_patch = torch.einsum("ntd,cd->nct", tokens, network.head.weight) + network.head.bias[:, None]
    expected = F.interpolate(by_patch.reshape(2, 3, 4, 4), (16, 16), mode="bilinear")
    torch.testing.assert_close(network(images), expected)


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


def test_evaluation_keeps_every_class_where_it_is(scenes: Path) -> None:
    images, classes = next(iter(opened(scenes, image_size=40).val_dataloader()))
    assert images.shape == (4, 3, 40, 40)
    assert classes.dtype == torch.long
    raw = pq.read_table(scenes / "validation.parquet")["annotation"][0]["bytes"].as_py()
    assert (classes[0].numpy() == np.kron(np.array(Image.open(io.BytesIO(raw))), np.ones((2, 2)))).all()


def test_training_moves_images_and_annotations_together(scenes: Path) -> None:
    data = opened(scenes, augment=True, scale=(0.6, 1.5))
    transform = data.transform(training=True)
    annotation = np.kron(np.arange(4).reshape(2, 2), np.ones((30, 30), int)).astype(np.uint8)
    image = Image.fromarray(np.stack([60 * annotation] * 3, -1))
    for _ in range(20):
        pixels, classes = transform(image, annotation)
        assert pixels.shape == (3, 16, 16)
        means = [pixels.mean(0)[classes == c].mean() for c in range(4) if (classes == c).sum() > 8]
        assert means == sorted(means)  # colours are jittered, but brighter classes stay brighter
        assert set(classes.unique().tolist()) <= {0, 1, 2, 3, IGNORED}


def test_classes_begin_where_they_are_said_to(scenes: Path) -> None:
    _, plain = next(iter(opened(scenes, augment=False).val_dataloader()))
    _, shifted = next(iter(opened(scenes, augment=False, first_class=1, ignore=4).val_dataloader()))
    unscored = (plain == 0) | (plain == 4)
    assert (shifted[unscored] == IGNORED).all()
    assert torch.equal(shifted[~unscored], plain[~unscored] - 1)


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


def test_position_embeddings_have_no_weight_decay(scenes: Path) -> None:
    module = tiny(5)
    trainer = pl.Trainer(max_steps=1, enable_checkpointing=False, **QUIET)
    trainer.fit(module, opened(scenes))
    position = module.network.backbone.pos_embed
    groups = trainer.optimizers[0].param_groups
    assert [g["weight_decay"] for g in groups if any(p is position for p in g["params"])] == [0.0]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("resnet18", "cannot be made as one: .*img_size"), ("swin_tiny_patch4_window7_224", "is a Swin")],
)
def test_only_vision_transformers_are_taken(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"to be a vision transformer of timm, but '{name}' {reason}"):
        ImageSegmenter(3, name, image_size=224)


def test_wrong_scale_is_refused(scenes: Path) -> None:
    with pytest.raises(ValueError, match="Expected scale to be a range of positive numbers"):
        opened(scenes, scale=(2.0, 0.5))


def test_annotations_in_colours_are_refused(scenes: Path) -> None:
    transform = opened(scenes).transform(training=False)
    with pytest.raises(ValueError, match=r"one class index per pixel, \(H, W\), but got one of shape \(4, 4, 3\)"):
        transform(Image.new("RGB", (4, 4)), np.zeros((4, 4, 3), np.uint8))


@pytest.mark.data
def test_real_street_scenes(data_root: Path) -> None:
    """DeiT-Tiny learns CamVid's classes well above chance within a minute, and goes on after surgery."""
    data = SegmentationData(
        str(data_root / "data" / "camvid"), image_size=128, ignore=11, limit_train=48, limit_val=24, num_workers=0
    )
    pl.seed_everything(0)
    name = f"local-dir:{data_root}/models/deit_tiny_patch16_224"
    module = ImageSegmenter(11, name, pretrained=True, image_size=128, learning_rate=3e-4)
    prune = DepthPrune(
        remove={"attention": 1, "activation": 1}, calibration=16, search="one_shot", schedule={"start": 3}
    )
    trainer = pl.Trainer(max_epochs=5, enable_checkpointing=False, callbacks=[prune, DistillRecover()], **QUIET)
    trainer.fit(module, data)
    scores = trainer.validate(module, data, verbose=False)[0]
    assert scores["val_pixel_accuracy"] > 0.6
    assert scores["val_miou"] > 0.2


@pytest.mark.parametrize(
    "method",
    one_in(2, [DepthPlan({"attention": 1}, importance="gate_gradient"), PublishedBoundaryPlan(2, trials=SHORT)]),
)
def test_plans_are_scored_by_the_loss_that_the_segmenter_trains_with(
    scenes: Path, tmp_path: Path, method: PlanMethod
) -> None:
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
