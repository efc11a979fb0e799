"""The recipes of detection, with a run on real scenes from the command line to its report."""

from __future__ import annotations

from pathlib import Path

import pytest

from prunerecover.recipes.cli.main import main

SMALL = {
    "data.num_workers": 0,
    "data.batch_size": 2,
    "data.limit_train": 4,
    "data.limit_val": 2,
    "data.val_fraction": 0,
    "model.pretrained": "false",
    "trainer.accelerator": "cpu",
    "trainer.max_epochs": 1,
    "trainer.logger": "false",
    "trainer.enable_progress_bar": "false",
    "trainer.callbacks.WidthPrune.schedule": 0,
    "trainer.callbacks.WidthPrune.calibration": 4,
    "trainer.callbacks.PruneReport.pairs": 2,
    "trainer.callbacks.PruneReport.samples": 2,
}


@pytest.mark.data
def test_a_recipe_ends_in_a_report(data_root: Path, in_tmp: Path) -> None:
    options = [f"--{name}={value}" for name, value in SMALL.items()]
    path = f"--data.path={data_root}/data/coco128"
    assert main(["fit", "--config", "ssdlite_width_coco", path, *options]) == 0
    report = (in_tmp / "report" / "report.md").read_text()
    assert "MACs per sample" in report
    assert "val_map" in report
    assert (in_tmp / "checkpoints" / "pruned" / "model.safetensors").is_file()


@pytest.mark.data
@pytest.mark.usefixtures("in_tmp")
def test_the_recipe_of_a_yolo_takes_its_convolutions(data_root: Path) -> None:
    pytest.importorskip("ultralytics")
    network = {"model.model.init_args.model": "yolo11n.yaml", "model.image_size": 64}  # no weights without a download
    trainer = {
        "trainer.fast_dev_run": "true",
        "trainer.accelerator": "cpu",
        "trainer.callbacks.DepthPrune.calibration": 8,
        "trainer.callbacks.DepthPrune.budget.macs": 0.03,
    }
    data = {"data.path": f"{data_root}/data/coco128", "data.num_workers": 0, "data.batch_size": 2}
    options = [f"--{name}={value}" for name, value in (network | trainer | data).items()]
    assert main(["fit", "--config", "yolo11_depth_coco", *options]) == 0
