"""Suites of the zoo by name, and reasons for missing ones."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from benchmarks.zoo.networks.network import Network

SUITES = ("torchvision", "timm", "transformers", "ultralytics", "plain")


@cache
def networks_of(suite: str) -> dict[str, Network]:
    """Return the networks of a suite by name.

    Raises:
        ImportError: If the suite's package is not installed.
    """
    found: list[Network] = import_module(f"benchmarks.zoo.networks.{suite}").networks()
    assert len({network.name for network in found}) == len(found), f"names of {suite} are there twice"
    return {network.name: network for network in found}


def available() -> tuple[dict[str, dict[str, Network]], dict[str, str]]:
    """Return the networks of all suites with installed packages, and the reasons for missing suites."""
    found, missing = dict[str, dict[str, Network]](), dict[str, str]()
    for suite in SUITES:
        try:
            found[suite] = networks_of(suite)
        except ImportError as error:
            missing[suite] = f"{suite} cannot be imported: {error}."
    return found, missing
