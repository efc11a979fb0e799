"""Each cell of the edge matrix is measured on a small network of its task, in the runtimes that are installed."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import timm
import torch
from cases.models.tiny import VOCABULARY, tiny_llama
from torch import Tensor, nn

from benchmarks.data.fastestdet import STAGES, FastestDet
from benchmarks.edge.edge_matrix import BENCHMARK
from benchmarks.edge.runtimes import BY_NAME
from benchmarks.edge.subjects import BY_TASK, Outputs, Subject, paired
from benchmarks.runner.rows import Figure, Results
from prunerecover.recipes.tasks.segmenter import ImageSegmenter


def resnet() -> nn.Module:
    torch.manual_seed(0)
    network: nn.Module = timm.create_model("cifar_resnet20")
    return network.eval()


def detector() -> nn.Module:
    torch.manual_seed(0)
    with mock.patch("benchmarks.data.fastestdet.STAGES", {name: (*sizes, 2) for name, (*sizes, _) in STAGES.items()}):
        return FastestDet().eval()


def segmenter() -> nn.Module:
    torch.manual_seed(0)
    shape = {"patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
    return ImageSegmenter(3, image_size=16, model_kwargs=shape).network.eval()


def images(size: int) -> Tensor:
    return torch.rand(8, 3, size, size, generator=torch.Generator().manual_seed(0))


def tokens() -> Tensor:
    return torch.randint(1, VOCABULARY, (8, 9), generator=torch.Generator().manual_seed(0))


def means(found: Outputs, others: Outputs | None) -> Figure:
    first, second = (np.array([np.abs(out[0]).mean() for out in each]) for each in (found, others or found))
    return paired(first, second if others else None)


def small(task: str) -> Subject:
    build, samples = {
        "classification": (resnet, images(32)),
        "detection": (detector, images(64)),
        "segmentation": (segmenter, images(16)),
        "language": (tiny_llama, tokens()),
    }[task]
    return replace(BY_TASK[task], build=build, seen=lambda: samples, scored=lambda: samples, score=means)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> object:
    return tmp_path_factory.mktemp("exported")


@pytest.mark.slow
@pytest.mark.parametrize("runtime", BY_NAME)
@pytest.mark.parametrize("task", BY_TASK)
def test_a_network_is_converted(task: str, runtime: str, exported: object, monkeypatch: pytest.MonkeyPatch) -> None:
    if not BY_NAME[runtime].versions:
        pytest.skip("not installed")
    monkeypatch.setattr("benchmarks.edge.subjects.CHECKPOINTS", exported)
    monkeypatch.setattr("benchmarks.edge.edge_matrix.PAIRS", 2)
    monkeypatch.setitem(BY_TASK, task, small(task))
    found = BENCHMARK.measure(task=task, runtime=runtime)
    assert isinstance(found, dict)
    assert (found["state"], found["int8"]) == ("yes", "yes")
    assert found["int8_size"] < 1
    if runtime != "Core ML":  # its files run on Apple's systems alone
        assert found["apart"] < 1e-3
        assert abs(found["int8_change"].value) < 0.2 * found["quality"].value


def test_a_cell_without_a_runtime_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.edge.runtimes.Runtime.versions", "")
    assert BENCHMARK.measure(task="language", runtime="LiteRT")["state"] == "not installed"  # type: ignore[index]


def test_every_cell_says_what_happened() -> None:
    rows = Results.read("edge_matrix").rows
    assert {row["state"].partition(":")[0] for row in rows} <= {"yes", "no", "not installed"}
    cells = [{"task": row["task"], "runtime": row["runtime"]} for row in rows]
    assert all(cells.count(cell) == 1 and cell in BENCHMARK.wanted() for cell in cells)
