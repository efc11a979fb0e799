"""Packages of the extra `recipes`, asked for in one sentence before the first import."""

from __future__ import annotations

from importlib.util import find_spec


def check_installed(*packages: str) -> None:
    """Raise ModuleNotFoundError with the name of the extra if a package is not installed."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ModuleNotFoundError(
            f"Expected {' and '.join(packages)} for recipes, but {' and '.join(missing)} cannot be found. "
            'pip install "prunerecover[recipes]"',
            name=missing[0],
        )
