"""Checksums in the archives that `torch.save` writes: PyTorch writes them, and does not look at them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch


def check_sums(path: Path) -> None:
    """Raise RuntimeError if a checksum in a file of `torch.save` is wrong; one of before 1.6 has none.

    Args:
        path: File of `torch.save`.
    """
    if torch.serialization.get_crc32_options() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        if broken is not None:
            raise RuntimeError(f"{broken} has another checksum")
