"""The environment of a measurement: versions of what computes, processor, accelerator."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from prunerecover.version import __version__

PACKAGES = ("torch", "timm", "transformers", "lightning")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a result depends on; those not installed are left out.

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
    """Return the model name of a processor or accelerator, as its maker gives it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name() if device.type == "cpu" else device.type


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's model name; on systems without `cpuinfo`, what `platform` knows."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()
