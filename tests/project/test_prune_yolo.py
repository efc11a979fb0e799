"""docs/prune_yolo.md: its files run as written, on tiny random images, with the installed ultralytics.

Nothing is downloaded: networks begin with random weights, and ultralytics works offline in a separate folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy
import pytest
from cases.docs.blocks import blocks_of, read
from cases.files.detection_folder import write_detection_folder
from cases.paths import ROOT

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ultralytics") is None, reason="ultralytics is not installed: pip install .[yolo]"),
]

FILES = {block.file: block.text for block in blocks_of(read("docs/prune_yolo.md")) if block.file}
SETTINGS = """
TRAIN = {{"data": {data!r}, "imgsz": 64, "batch": 4, "epochs": 2, "workers": 0, "plots": False, "device": "cpu"}}
WEIGHTS, SHARE = "best.pt", 0.05
"""
NETWORK = """
nc: 2
backbone:
  - [-1, 1, Conv, [8, 3, 2]]
  - [-1, 1, Conv, [16, 3, 2]]
  - [-1, 1, C2f, [16, True]]
  - [-1, 1, Conv, [32, 3, 2]]
  - [-1, 1, C2f, [32, True]]
  - [-1, 1, Conv, [32, 3, 2]]
  - [-1, 1, C2f, [32, True]]
  - [-1, 1, Conv, [32, 3, 2]]
  - [-1, 1, C2f, [32, True]]
head:
  - [[4, 6, 8], 1, Detect, [nc]]
"""
TRAIN_DENSE = """
from settings import TRAIN
from ultralytics import YOLO
yolo = YOLO("tiny.yaml")
yolo.train(**{**TRAIN, "epochs": 1})
yolo.save("best.pt")
"""
TRAIN_AS_EVER = """
from settings import TRAIN
from ultralytics import YOLO
yolo = YOLO("pruned.pt")
yolo.train(**{**TRAIN, "epochs": 1})
yolo.save("dense_again.pt")
"""
OTHER_CLASSES = """
from pathlib import Path
from pruned_trainer import PrunedTrainer
from settings import TRAIN
from ultralytics import YOLO
Path("three.yaml").write_text(Path(TRAIN["data"]).read_text().replace("1: second", "1: second, 2: third"))
try:
    YOLO("pruned.pt").train(trainer=PrunedTrainer, **{**TRAIN, "data": "three.yaml"})
except ValueError as error:
    print(error)
"""
COUNT = """
from ultralytics import YOLO
for path in {files}:
    print("parameters:", sum(p.numel() for p in YOLO(path).model.parameters()))
"""
SEVERAL = "import runpy, sys; [runpy.run_path(path, run_name='__main__') for path in sys.argv[1:]]"


def run(folder: Path, *scripts: str) -> str:
    """Run scripts in a folder, in one separate process without network or user settings; return the output."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "YOLO_CONFIG_DIR": str(folder / "config"),
        "YOLO_OFFLINE": "true",
        "YOLO_AUTOINSTALL": "false",
        "OMP_NUM_THREADS": "1",
    }
    named = {f"own_{number}.py" if "\n" in script else script: script for number, script in enumerate(scripts)}
    for name in {*named} - {*scripts}:
        (folder / name).write_text(named[name])
    command = [sys.executable, "-c", SEVERAL, *named]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the page, after a network was trained and pruned there."""
    folder = tmp_path_factory.mktemp("yolo")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    data = write_detection_folder(folder / "images")
    (folder / "tiny.yaml").write_text(NETWORK)
    (folder / "settings.py").write_text(SETTINGS.format(data=str(data)))
    run(folder, TRAIN_DENSE, "prune.py")
    return folder


def parameters(folder: Path, *scripts: str, files: Sequence[str]) -> tuple[str, list[int]]:
    """Run scripts, and return their output, and the number of parameters in each file."""
    output = run(folder, *scripts, COUNT.format(files=files))
    return output, [int(count) for count in re.findall(r"^parameters: (\d+)$", output, re.MULTILINE)]


def test_training_in_ultralytics_keeps_the_pruned_network(folder: Path) -> None:
    """The page warns of training without its trainer, which builds the dense network again, as long as that holds."""
    last = run(folder, "train.py").rpartition("last.pt, to resume from: ")[2].strip()
    files = ["best.pt", "dense_again.pt", "pruned.pt", "recovered.pt", last, str(Path(last).with_name("best.pt"))]
    output, (dense, again, *pruned) = parameters(folder, TRAIN_AS_EVER, OTHER_CLASSES, files=files)
    assert again == dense
    assert pruned[0] < 0.96 * dense
    assert len(set(pruned)) == 1
    assert "Expected data of 2 classes, but got 3" in output


def test_training_in_lightning_and_exports_that_get_smaller(folder: Path) -> None:
    shutil.copy(folder / "pruned.pt", folder / "recovered.pt")
    scripts = ("lightning_fit.py", "back_to_ultralytics.py", "export.py", "export_by_torch.py")
    output, (dense, trained) = parameters(folder, *scripts, files=["best.pt", "from_lightning.pt"])
    assert trained < 0.96 * dense
    whole, *smaller = (float(size) for size in re.findall(r"\.pt: ([\d.]+) MB", output))
    assert len(smaller) == 2
    assert max(smaller) < 0.97 * whole
    session = onnxruntime.InferenceSession(folder / "pruned.onnx")
    (boxes,) = session.run(None, {session.get_inputs()[0].name: numpy.zeros((1, 3, 64, 64), numpy.float32)})
    assert boxes.shape == (1, 6, 84)
