"""Timings in turns: whatever slows the machine down for a while slows everything down alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from rich.progress import track

from benchmarks.runner.rows import Scores
from prunerecover.cost.latency import stopwatch_for


def in_turns(
    runs: Mapping[str, Callable[[], object]], rounds: int, warmup: int, device: torch.device
) -> dict[str, Scores]:
    """Return seconds by name, for each round after the warmup; every round has another order.

    Args:
        runs: Functions by name.
        rounds: Number of timed rounds.
        warmup: Number of rounds before them.
        device: Device for the clock.
    """
    found: dict[str, list[float]] = {name: [] for name in runs}
    seconds, names = stopwatch_for(device), list(runs)
    for number in track(range(warmup + rounds), "rounds"):
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            found[name].append(seconds(runs[name]))
    return {name: np.array(own[warmup:]) for name, own in found.items()}
