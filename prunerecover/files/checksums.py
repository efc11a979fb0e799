"""Checksums in the archives of `torch.save`, which PyTorch writes and never checks."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch


def check_sums(path: Path) -> None:
    """Raise RuntimeError for a wrong checksum in a file of `torch.save`; files of PyTorch before 1.6 have none.

    Args:
        path: File of `torch.save`.
    """
    if torch.serialization.get_crc32_options() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        if broken is not None:
            raise RuntimeError(f"{broken} has another checksum")
