"""Shared fixtures: tiny seeded models and images; no test touches the network."""

from __future__ import annotations

import atexit
import gc
import io
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cases import sampling

if TYPE_CHECKING:
    import torch
    from torch import nn

# Before torch and the hub libraries are imported, only in workers: a thread per worker, and no network.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")

# Folders and files without tests of how well values are tuned; of these, the ones that compare with other processes.
BRIEFLY = ("callbacks", "contracts", "recipes/cli", "recovery", "session", "display", "project/test_documents.py")
BRIEFLY += tuple(f"recipes/plan_methods/test_{name}.py" for name in ("joint", "width", "width_page"))
IN_FULL = ("callbacks/trainers",)

gc.disable()  # until all is imported: see `pytest_collection_finish`


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out most of the slow cases of long lists; skip tests on real data and on a GPU where there is none."""
    if (seed := os.environ.get("PRUNERECOVER_SAMPLE", "0")) != "all":
        left_out = sampling.left_out([item for item in items if item.get_closest_marker("slow")], seed)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    if not os.environ.get("PRUNERECOVER_DATA"):
        skip_data = pytest.mark.skip(reason="PRUNERECOVER_DATA is not set to a folder with data/ and models/")
        for item in items:
            if item.get_closest_marker("data"):
                item.add_marker(skip_data)
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not has_cuda():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_collection_finish() -> None:
    """Exclude the libraries from garbage collection, and collect seldom: otherwise it takes a tenth of the time."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # some libraries look for leaks at exit
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _quickly_written() -> Iterator[None]:
    """Wait for no disk, and write figures with few dots: files of tests outlive no power cut, and nobody looks."""
    from matplotlib.figure import Figure

    savefig = Figure.savefig

    def coarse(figure: Figure, file: object, *, dpi: float = 60, **kwargs: object) -> None:
        savefig(figure, file, dpi=min(dpi, 60), **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(Figure, "savefig", coarse)
        yield


@pytest.fixture(scope="module", autouse=True)
def _briefly_tuned(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tune values for a few steps where tests are of something else."""
    with pytest.MonkeyPatch.context() as patch:
        briefly, in_full = (
            any(request.path.is_relative_to(Path(__file__).parent / place) for place in own)
            for own in (BRIEFLY, IN_FULL)
        )
        if briefly and not in_full:
            patch.setattr("prunerecover.calibration.learning.EPOCHS", 1)
            patch.setattr("prunerecover.calibration.steps.WANTED_OUTPUTS", 64)
        yield


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Return the folder in PRUNERECOVER_DATA, with `data/` and `models/`; for tests marked `data`."""
    return Path(os.environ["PRUNERECOVER_DATA"])


@pytest.fixture(scope="session")
def in_a_new_process() -> Iterator[Callable[[str], None]]:
    """Return a function that runs a script in a separate interpreter, started once for all callers."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield lambda script: pool.submit(exec, f"import torch\ntorch.set_num_threads(1)\n{script}", {}).result()


@pytest.fixture
def make_vit() -> Callable[..., nn.Module]:
    """A factory of tiny seeded ViTs; keywords override."""

    def build(*name: str, **kwargs: object) -> nn.Module:
        import torch
        from cases.models.habits import tiny_vit

        torch.manual_seed(0)
        return tiny_vit(*name, **kwargs).eval()

    return build


@pytest.fixture
def tiny_vit(make_vit: Callable[..., nn.Module]) -> nn.Module:
    """A tiny seeded ViT in eval mode."""
    return make_vit()


@pytest.fixture
def grey_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Four labelled batches of 8 grey images of 8 x 8, 4 classes."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(8, 1, 8, 8, generator=generator), torch.randint(0, 4, (8,), generator=generator)) for _ in range(4)
    ]


@pytest.fixture
def parquet_folder(tmp_path: Path, own_cache: Path) -> Path:
    """A folder like the hub's: train.parquet (24 rows) and valid.parquet (8), image and label columns, 4 classes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "images"
    folder.mkdir()
    for name, rows in (("train", 24), ("valid", 8)):
        images = [{"bytes": _png(i), "path": None} for i in range(rows)]
        pq.write_table(pa.table({"image": images, "label": [i % 4 for i in range(rows)]}), folder / f"{name}.parquet")
    return folder


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the test's own for `datasets`."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    yield tmp_path / "cache"
    datasets.enable_progress_bars()


@pytest.fixture
def make_png() -> Callable[[int], bytes]:
    """Return a factory of RGB images of a single colour, as PNG."""
    return _png


def _png(shade: int, size: int = 12) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (size, size), (shade * 10 % 256, 40, 90)).save(buffer, "PNG")
    return buffer.getvalue()
