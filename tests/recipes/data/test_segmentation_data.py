"""Scenes: images and annotations stay together, and errors are reported before training."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from cases.files.scenes import drawn, opened, png, write_parquet, write_scenes
from PIL import Image

from prunerecover.recipes.data.segmentation_data import IGNORED


@pytest.fixture
def scenes(tmp_path: Path, own_cache: Path) -> Path:
    return write_scenes(tmp_path / "scenes")


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


def test_scenes_may_be_other_than_square(scenes: Path) -> None:
    for training in (True, False):
        data = opened(scenes, image_size=(12, 24), augment=training)
        pixels, classes = next(iter(data.train_dataloader()))
        assert pixels.shape == (4, 3, 12, 24)
        assert classes.shape == (4, 12, 24)


def test_mits_folder_is_read_as_the_parquet_files_are(scenes: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ADEChallengeData2016"
    for split, n in (("training", 8), ("validation", 4)):
        for i, pair in enumerate(drawn(n)):
            for part, content in zip(("images", "annotations"), pair, strict=True):
                place = folder / part / split
                place.mkdir(parents=True, exist_ok=True)
                (place / f"ADE_{i:08d}.png").write_bytes(content)
    for role in ("train", "val"):
        ours, theirs = (opened(path, augment=False).datasets[role] for path in (folder, scenes))
        assert len(ours) == len(theirs)
        for pair, other in zip(ours, theirs, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(pair, other, strict=True))
    (folder / "annotations" / "validation" / "ADE_00000002.png").unlink()
    with pytest.raises(ValueError, match=r"each scene of validation in .*missing for 1 \(ADE_00000002\)"):
        opened(folder)


def test_wrong_arguments_are_refused(scenes: Path) -> None:
    with pytest.raises(ValueError, match="Expected scale to be a range of positive numbers"):
        opened(scenes, scale=(2.0, 0.5))
    with pytest.raises(ValueError, match="annotation named 'labels', but the data has image, annotation. Set annot"):
        opened(scenes, annotation_column="labels")


def test_annotations_that_are_no_classes_of_their_image_are_refused(scenes: Path) -> None:
    (image, _), small, coloured = drawn(1)[0], np.zeros((10, 20), np.uint8), np.zeros((20, 20, 3), np.uint8)
    write_parquet(scenes / "train.parquet", [(image, png(small)), (image, png(coloured))])
    rows = opened(scenes).datasets["train"]
    with pytest.raises(ValueError, match="its image, 20 x 20 pixels, but got 20 x 10.*This is row 0 of the train"):
        rows[0]
    with pytest.raises(ValueError, match=r"one class index per pixel, \(H, W\), but got one of shape \(20, 20, 3\)"):
        rows[1]


def test_empty_folders_and_files_are_refused(scenes: Path, tmp_path: Path) -> None:
    write_parquet(scenes / "validation.parquet", [])
    with pytest.raises(ValueError, match="read in .*scenes, but validation.parquet has no rows. Take such files out"):
        opened(scenes)
    for part in ("images", "annotations"):
        (tmp_path / part).mkdir()
    with pytest.raises(ValueError, match="Expected folders of splits in .*images, such as training"):
        opened(tmp_path)
    (tmp_path / "images" / "training").mkdir()
    with pytest.raises(ValueError, match="Expected samples in the train split of .*, but it is empty"):
        opened(tmp_path)


def test_data_set_that_is_code_is_answered_with_its_parquet_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(path: str, name: str | None) -> None:
        raise RuntimeError("Dataset scripts are no longer supported, but found scene_parse_150.py")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(ValueError, match="scripts are no longer supported.*--revision refs/convert/parquet"):
        opened("zhoubolei/scene_parse_150")
