"""ImageData opens each source alike, with the images of timm's own transform."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

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
    how = {"mean": [0.1, 0.2, 0.3], "std": [1.0, 2.0, 3.0], "interpolation": "bilinear", "crop_pct": 0.5}
    raw = pq.read_table(parquet_folder / "valid.parquet")["image"][3]["bytes"].as_py()
    image, label = opened(parquet_folder, **how).datasets["val"][3]
    assert torch.equal(image, create_transform(8, **how)(Image.open(io.BytesIO(raw))))
    assert label == 3


def test_model_name_gives_the_preprocessing() -> None:
    name = "vit_tiny_patch16_224"  # mean and std 0.5
    image = Image.new("RGB", (300, 260), (10, 200, 90))
    expected = create_transform(**resolve_model_data_config(timm.create_model(name)))(image)
    assert torch.equal(ImageData("unused/unused", model=name).transform(training=False)(image), expected)
    smaller = ImageData("unused/unused", model=name, image_size=32).transform(training=False)(image)
    assert smaller.shape == (3, 32, 32)


@pytest.mark.parametrize("mean", [[0.5], [0.4, 0.5, 0.6]], ids=["grey", "coloured"])
def test_model_for_grey_images_gets_one_channel(tmp_path: Path, mean: list[float]) -> None:
    cfg = {"input_size": [1, 8, 8], "mean": mean, "std": [0.5] * len(mean)}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_tiny_patch16_224", "pretrained_cfg": cfg}))
    transform = ImageData("unused/unused", model=f"local-dir:{tmp_path}", image_size=8).transform(training=False)
    torch.testing.assert_close(transform(Image.new("RGB", (20, 20))), torch.full((1, 8, 8), -1.0))


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
    assert all_labels(opened(tmp_path / "folders", "test").test_dataloader()) == [0, 1, 2, 3]
    assert opened(tmp_path / "folders").val_dataloader() == []  # a fit goes on without a validation split


@pytest.mark.parametrize(
    ("options", "sizes", "apart"),
    [({"val_fraction": 0.25}, (18, 6), 24), ({"limit_train": 10, "limit_val": 5}, (10, 5), 10)],
)
def test_draws_follow_the_seed(parquet_folder: Path, options: dict, sizes: tuple[int, int], apart: int) -> None:
    """Images of the validation file are also in the training file."""

    def drawn(seed: int) -> tuple[list[bytes], list[bytes]]:
        data = opened(parquet_folder, **options, seed=seed).datasets
        train, val = ([row["image"]["bytes"] for row in data[role].rows.to_list()] for role in ("train", "val"))
        return train, val

    train, val = drawn(1)
    assert (len(train), len(val)) == sizes
    assert len({*train, *val}) >= apart
    assert drawn(1) == (train, val)
    assert drawn(2)[0] != train


def test_augmentation_is_random_in_training_alone(parquet_folder: Path) -> None:
    rows = opened(parquet_folder, augment=True, augment_kwargs={"re_prob": 1.0, "color_jitter": 0.9}).datasets
    for role, same in (("train", False), ("val", True)):
        first, second = (rows[role][1][0] for _ in range(2))
        assert torch.equal(first, second) == same


def rewritten(folder: Path, change: Callable[[object], object]) -> Path:
    """Change the table of every file of a folder."""
    for file in folder.iterdir():
        pq.write_table(change(pq.read_table(file)), file)
    return folder


def test_named_columns_win(parquet_folder: Path) -> None:
    """Images are under a misleading name."""
    folder = rewritten(parquet_folder, lambda table: table.rename_columns(["label", "kind"]))
    data = opened(folder, image_column="label", label_column="kind")
    assert all_labels(data.val_dataloader()) == [i % 4 for i in range(8)]


def test_text_labels_are_an_error(parquet_folder: Path) -> None:
    folder = rewritten(parquet_folder, lambda table: table.set_column(1, "label", table["label"].cast("string")))
    with pytest.raises(ValueError, match="Expected whole-number labels in column 'label', but got string"):
        opened(folder)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("{folder}", {"image_column": "photo"}, "column for the image named 'photo', but the data has image, label"),
        ("{folder}", {"label_column": "kind"}, "column for the label named 'kind', .* Set label_column"),
        ("{folder}", {"val_split": "holdout"}, "Expected a val split named 'holdout' .* but it has train, validation"),
        ("{folder}", {"limit_train": 25}, "Expected limit_train to be between 1 and 24, the rows .*, but got 25"),
        ("{folder}", {"val_fraction": 1.5}, r"Expected val_fraction to be in \[0, 1\), but got 1.5"),
        ("{folder}/nowhere", {}, "Expected data at .*, but nothing is there"),
        ("{folder}/empty", {}, "Expected parquet files or one folder per class"),
        ("no/where", {}, "'no/where' to be a local path or a hub data set that can be .* path of a copy .*hf download"),
    ],
)
def test_what_is_missing_is_refused(parquet_folder: Path, path: str, options: dict[str, object], message: str) -> None:
    (parquet_folder / "empty").mkdir()
    with pytest.raises(ValueError, match=message):
        opened(path.format(folder=parquet_folder), **options)


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
@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("folder", "mapped", "top1"), [("tiny_imagenet", True, 0.5625), ("imagenet_sample", False, 0.795)]
)
def test_real_weights_score_what_others_measured(data_root: Path, folder: str, mapped: bool, top1: float) -> None:
    """DeiT-Tiny on 400 images drawn with seed 1, against the figures of an independent evaluation script."""
    import lightning.pytorch as pl

    from prunerecover.recipes.tasks.image_classifier import ImageClassifier

    weights, path = f"local-dir:{data_root}/models/deit_tiny_patch16_224", data_root / "data" / folder
    label_map = str(path / "imagenet1k_index.json") if mapped else None
    module = ImageClassifier(weights, pretrained=True, label_map=label_map)
    data = ImageData(str(path), model=weights, val_split="validation", limit_val=400, seed=1, batch_size=50)
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    (found,) = trainer.validate(module, data, verbose=False)
    assert found["val_top1"] == pytest.approx(top1, abs=0.006)
