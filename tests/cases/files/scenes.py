"""Scenes of a few pixels in parquet files and folders, and the data module for them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from prunerecover.recipes.data.segmentation_data import SegmentationData


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def drawn(n: int, seed: int = 0) -> list[tuple[bytes, bytes]]:
    """Return images and annotations of 20 x 20 pixels; a pixel's red is 40 times its annotation (0-4)."""
    rng = np.random.default_rng(seed)
    found = [np.kron(rng.integers(0, 5, (5, 5)), np.ones((4, 4), int)).astype(np.uint8) for _ in range(n)]
    return [(png(np.stack([40 * a, a, a], -1)), png(a)) for a in found]


def write_parquet(path: Path, scenes: list[tuple[bytes, bytes]]) -> None:
    """Write scenes as the hub does."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {
        name: pa.array([{"bytes": scene[i], "path": None} for scene in scenes], kind)
        for i, name in enumerate(("image", "annotation"))
    }
    pq.write_table(pa.table(columns), path)


def write_scenes(folder: Path) -> Path:
    """Write 8 training and 4 validation scenes."""
    folder.mkdir()
    for name, n in (("train", 8), ("validation", 4)):
        write_parquet(folder / f"{name}.parquet", drawn(n))
    return folder


def opened(path: Path | str, stage: str = "fit", **kwargs: object) -> SegmentationData:
    data = SegmentationData(str(path), **{"image_size": 16, "batch_size": 4, "num_workers": 0, **kwargs})
    data.prepare_data()
    data.setup(stage)
    return data
