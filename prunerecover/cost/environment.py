"""Environment of a measurement: versions of the software, processor, accelerator."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from prunerecover.version import __version__

PACKAGES = ("torch", "timm", "transformers", "lightning")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result; packages not installed are left out.

    >>> list(versions())[:3]
    ['python', 'prunerecover', 'torch']
    """
    found = {"python": platform.python_version(), "prunerecover": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def device_name(device: torch.device) -> str:
    """Return the maker's model name of a processor or accelerator."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name() if device.type == "cpu" else device.type


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's model name; on systems without `cpuinfo`, the name from `platform`."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()
