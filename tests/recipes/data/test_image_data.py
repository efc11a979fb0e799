"""ImageData opens each source alike, with the images of timm's own transform."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from prunerecover.recipes.data.digits import DigitsData
from prunerecover.recipes.data.image_data import ImageData


def opened(path: object, stage: str = "fit", **kwargs: object) -> ImageData:
    data = ImageData(str(path), **{"image_size": 8, "batch_size": 4, "num_workers": 0, "augment": False, **kwargs})
    data.prepare_data()
    data.setup(stage)
    return data


def all_labels(loader: object) -> list[int]:
    return [int(y) for _, labels in loader for y in labels]


def test_images_equal_timms_transform_of_the_file(parquet_folder: Path) -> None:
    import io

    import pyarrow.parquet as pq
    from PIL import Image
    from timm.data import create_transform

    data = opened(parquet_folder, mean=[0.1, 0.2, 0.3], std=[1.0, 2.0, 3.0], interpolation="bilinear", crop_pct=0.5)
    raw = pq.read_table(parquet_folder / "valid.parquet")["image"][3]["bytes"].as_py()
    transform = create_transform(8, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0), interpolation="bilinear", crop_pct=0.5)
    image, label = data.datasets["val"][3]
    assert torch.equal(image, transform(Image.open(io.BytesIO(raw))))
    assert label == 3


def test_model_name_gives_the_preprocessing(parquet_folder: Path) -> None:
    import timm
    from PIL import Image
    from timm.data import create_transform, resolve_model_data_config

    name = "vit_tiny_patch16_224"  # mean and std 0.5
    image = Image.new("RGB", (300, 260), (10, 200, 90))
    expected = create_transform(**resolve_model_data_config(timm.create_model(name)))(image)
    found = ImageData("unused/unused", model=name).transform(training=False)(image)
    assert torch.equal(found, expected)
    smaller = ImageData("unused/unused", model=name, image_size=32).transform(training=False)(image)
    assert smaller.shape == (3, 32, 32)


@pytest.mark.parametrize("mean", [[0.5], [0.4, 0.5, 0.6]], ids=["grey", "coloured"])
def test_model_for_grey_images_gets_one_channel(tmp_path: Path, mean: list[float]) -> None:
    from PIL import Image

    cfg = {"input_size": [1, 8, 8], "mean": mean, "std": [0.5] * len(mean)}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_tiny_patch16_224", "pretrained_cfg": cfg}))
    image = ImageData("unused/unused", model=f"local-dir:{tmp_path}", image_size=8).transform(training=False)(
        Image.new("RGB", (20, 20))
    )
    torch.testing.assert_close(image, torch.full((1, 8, 8), -1.0))


def test_splits_are_found_and_ordered(parquet_folder: Path) -> None:
    data = opened(parquet_folder)
    assert all_labels(data.val_dataloader()) == [i % 4 for i in range(8)]
    assert sorted(all_labels(data.train_dataloader())) == sorted(i % 4 for i in range(24))
    data.setup("test")
    assert all_labels(data.test_dataloader()) == [i % 4 for i in range(8)]  # no test split: validation
    assert all_labels(data.predict_dataloader()) == all_labels(data.test_dataloader())


@pytest.mark.usefixtures("own_cache")
def test_class_folders_equal_parquet(tmp_path: Path, make_png: Callable[[int], bytes]) -> None:
    for index in range(4):
        for split in ("train", "test"):
            file = tmp_path / "folders" / split / f"class{index}" / "a.png"
            file.parent.mkdir(parents=True)
            file.write_bytes(make_png(index))
    data = opened(tmp_path / "folders", "test")
    assert all_labels(data.test_dataloader()) == [0, 1, 2, 3]


def test_without_validation_split_fit_goes_on(parquet_folder: Path) -> None:
    (parquet_folder / "valid.parquet").unlink()
    assert opened(parquet_folder).val_dataloader() == []


def test_validation_fraction_splits_train_in_two(parquet_folder: Path) -> None:
    data = opened(parquet_folder, val_fraction=0.25, seed=3)
    again = opened(parquet_folder, val_fraction=0.25, seed=3)
    train, val = (data.datasets[role].rows.to_list() for role in ("train", "val"))
    keys = [row["image"]["bytes"] for row in train + val]
    assert len(train) == 18
    assert len(val) == 6
    assert len(set(keys)) == 24
    assert val == again.datasets["val"].rows.to_list()


def test_limits_draw_a_seeded_subset(parquet_folder: Path) -> None:
    first, second = (opened(parquet_folder, limit_train=10, limit_val=5, seed=s) for s in (1, 2))
    again = opened(parquet_folder, limit_train=10, seed=1)
    assert len(first.datasets["train"]) == 10
    assert len(first.datasets["val"]) == 5
    assert first.datasets["train"].rows.to_list() == again.datasets["train"].rows.to_list()
    assert first.datasets["train"].rows.to_list() != second.datasets["train"].rows.to_list()


def test_augmentation_is_random_in_training_alone(parquet_folder: Path) -> None:
    data = opened(parquet_folder, augment=True, augment_kwargs={"re_prob": 1.0, "color_jitter": 0.9})

    def twice(role: str) -> tuple[Tensor, Tensor]:
        return data.datasets[role][1][0], data.datasets[role][1][0]

    assert not torch.equal(*twice("train"))
    assert torch.equal(*twice("val"))


def test_named_columns_win(parquet_folder: Path) -> None:
    import pyarrow.parquet as pq

    for file in parquet_folder.iterdir():
        table = pq.read_table(file).rename_columns(["label", "picture_of"])  # images under a misleading name
        pq.write_table(table.append_column("kind", table["picture_of"]), file)
    data = opened(parquet_folder, image_column="label", label_column="kind")
    assert all_labels(data.val_dataloader()) == [i % 4 for i in range(8)]


def test_text_labels_are_an_error(parquet_folder: Path) -> None:
    import pyarrow.parquet as pq

    for file in parquet_folder.iterdir():
        table = pq.read_table(file)
        words = table["label"].cast("string")
        pq.write_table(table.set_column(1, "label", words), file)
    with pytest.raises(ValueError, match="Expected whole-number labels in column 'label', but got string"):
        opened(parquet_folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_column": "photo"}, "column for the image named 'photo', but the data has image, label"),
        ({"val_split": "holdout"}, "Expected a val split named 'holdout' .* but it has train, validation"),
        ({"limit_train": 25}, "Expected limit_train to be between 1 and 24, the rows .*, but got 25"),
        ({"val_fraction": 1.5}, r"Expected val_fraction to be in \[0, 1\), but got 1.5"),
    ],
)
def test_what_the_data_lack_is_refused(parquet_folder: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        opened(parquet_folder, **options)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{folder}/nowhere", "Expected data at .*, but nothing is there"),
        ("{folder}", "Expected parquet files or one folder per class"),
        ("nobody/nothing", "Expected 'nobody/nothing' to be a local path or a hub data set"),
    ],
)
def test_paths_that_are_refused(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(ValueError, match=message):
        opened(path.format(folder=tmp_path / "images"))


def test_digits_split_is_stratified_seeded_and_complete() -> None:
    data, again = DigitsData(seed=1), DigitsData(seed=1)
    for module in (data, again):
        module.setup("fit")
    sizes = {role: len(rows) for role, rows in data.datasets.items()}
    assert sum(sizes.values()) == 1797
    assert sizes["test"] >= 800
    for role, rows in data.datasets.items():
        assert torch.equal(rows.images, again.datasets[role].images)
        shares = rows.labels.bincount(minlength=10) / len(rows)
        assert (shares - 0.1).abs().max() < 0.02


def test_digits_shift_moves_pixels_by_at_most_one() -> None:
    data = DigitsData(shift=1)
    data.setup("fit")
    rows = data.datasets["train"]
    original = torch.nn.functional.pad(rows.images[0], (1, 1, 1, 1), value=-1.0)
    options = [original[:, y : y + 8, x : x + 8] for y in range(3) for x in range(3)]
    drawn = [rows[0][0] for _ in range(60)]
    seen = [next(i for i, option in enumerate(options) if torch.equal(option, image)) for image in drawn]
    assert len(set(seen)) > 5
    assert torch.equal(data.datasets["val"][0][0], data.datasets["val"].images[0])


def test_digits_shift_out_of_range_is_an_error() -> None:
    with pytest.raises(ValueError, match="Expected shift to be 0-7 pixels of an 8 x 8 image, but got 8"):
        DigitsData(shift=8)


@pytest.mark.data
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("folder", "stage", "rows"),
    [("tiny_imagenet", "validate", 5000), ("imagenet_sample", "test", 1000), ("cifar10_lossless", "test", 400)],
)
def test_real_folders_open(data_root: Path, folder: str, stage: str, rows: int) -> None:
    data = opened(data_root / "data" / folder, stage)
    role = {"validate": "val", "test": "test"}[stage]
    assert len(data.datasets[role]) == rows
    assert data.datasets[role][0][0].shape == (3, 8, 8)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("folder", "mapped", "top1"), [("tiny_imagenet", True, 0.5625), ("imagenet_sample", False, 0.795)]
)
def test_real_weights_score_what_others_measured(data_root: Path, folder: str, mapped: bool, top1: float) -> None:
    """DeiT-Tiny on 400 images drawn with seed 1, against the figures of an independent evaluation script."""
    import lightning.pytorch as pl

    from prunerecover.recipes.tasks.image_classifier import ImageClassifier

    weights = f"local-dir:{data_root}/models/deit_tiny_patch16_224"
    label_map = str(data_root / "data" / folder / "imagenet1k_index.json") if mapped else None
    module = ImageClassifier(weights, pretrained=True, label_map=label_map)
    path = str(data_root / "data" / folder)
    data = ImageData(path, model=weights, val_split="validation", limit_val=400, seed=1, batch_size=50, num_workers=0)
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    (found,) = trainer.validate(module, data, verbose=False)
    assert found["val_top1"] == pytest.approx(top1, abs=0.006)
