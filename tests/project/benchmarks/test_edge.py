"""Converters of the edge matrix compute what a pruned network computes, in the runtimes that are installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cases.planning.networks import images, vit

from benchmarks.edge.edge_matrix import BENCHMARK
from benchmarks.edge.runtimes import Exported, onnxruntime, openvino
from benchmarks.runner.rows import Results
from prunerecover import apply_plan, export, plan_depth


@pytest.mark.slow
@pytest.mark.parametrize(("package", "int8"), [("onnxruntime", False), ("onnxruntime", True), ("openvino", False)])
def test_a_converted_file_computes_what_the_pruned_network_computes(package: str, int8: bool, tmp_path: Path) -> None:
    pytest.importorskip(package)
    network, one = vit(), images()[0][0][:1]
    apply_plan(network, plan_depth(network, remove={"attention": 1}, batches=images(4), search="one_shot"))
    onnx = export(network, tmp_path / "model.onnx", one, dynamic=False)
    files = Exported(tmp_path, onnx, tmp_path / "model.pt2", [[one.numpy()]], convolutional=False)
    path, run = {"onnxruntime": onnxruntime, "openvino": openvino}[package](files, int8)
    with torch.no_grad():
        right = network(one).numpy()
    assert run is not None
    assert np.abs(run([one.numpy()])[0] - right).max() < (0.1 if int8 else 1e-4) * np.abs(right).max()
    assert path.is_file()


def test_a_cell_without_a_runtime_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.edge.runtimes.Runtime.versions", "")
    assert BENCHMARK.measure(task="language", runtime="LiteRT")["state"] == "not installed"  # type: ignore[index]


def test_every_cell_says_what_happened() -> None:
    rows = Results.read("edge_matrix").rows
    assert {row["state"].partition(":")[0] for row in rows} <= {"yes", "no", "not installed"}
    cells = [{"task": row["task"], "runtime": row["runtime"]} for row in rows]
    assert all(cells.count(cell) == 1 and cell in BENCHMARK.wanted() for cell in cells)
