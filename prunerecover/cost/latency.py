"""Latency of a forward pass, and ratios of two models' latencies on a machine of varying speed.

Two models timed one after another differ by the machine's further work meanwhile. The models are therefore timed in
pairs, back to back, the order swapped from pair to pair; each pair gives a ratio, and the median over the pairs is
reported with a bootstrap interval. The number of threads is fixed, the garbage collector waits, and on an accelerator
each call is timed on the device. A single thread on a CPU is timed by processor time, free of the machine's further
work: the thread's for PyTorch, the process's for all further runtimes (see `runtimes.clocks`).

Not covered: throughput under concurrency, the loading of data, and the first call (compilation, autotuning), which
belongs to the warm-up.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from prunerecover.cost.statistics import Interval, median_interval
from prunerecover.cost.units.clock_names import TORCH, Clock, check_clock
from prunerecover.model.batches import ModelInputs, as_inputs
from prunerecover.model.evaluation import device_of, evaluating
from prunerecover.runtimes.clocks import run_in, seconds_of

Stopwatch = Callable[[Callable[[], object]], float]  # runs the function and returns seconds
FEWEST = 4  # pairs, to estimate their spread


@dataclass(frozen=True)
class LatencyRatio:
    """Latency of a pruned model as a share of the dense model's.

    Args:
        ratio: Median over the pairs of pruned time / dense time, with its interval; below 1 is faster.
        dense_ms: Median latency of the dense model.
        pruned_ms: Median latency of the pruned model.
        pairs: Number of timed pairs.
        batch_size: Samples per forward pass.
        device: Device of the measurement.
        threads: CPU threads of PyTorch during the measurement.
    """

    ratio: Interval
    dense_ms: float
    pruned_ms: float
    pairs: int
    batch_size: int
    device: str
    threads: int


@dataclass(frozen=True, eq=False)
class Timed:
    """A network to be timed on some inputs.

    Attributes:
        network: Network.
        inputs: Inputs on its device.
        clock: Name of a runtime among `CLOCKS`, or a callable `(network, inputs) -> seconds`.
    """

    network: nn.Module
    inputs: ModelInputs
    clock: str | Clock = TORCH

    @cached_property
    def run(self) -> Callable[[], object]:
        """Function that runs the network once; a callable clock's function returns the measured seconds."""
        if isinstance(self.clock, str):
            return run_in(self.clock, self.network, self.inputs)
        return partial(seconds_of, self.clock, self.network, self.inputs)

    @property
    def stopwatch(self) -> Stopwatch:
        """Function that times one run."""
        if not isinstance(self.clock, str):
            return _told_seconds
        if self.clock == TORCH:
            return stopwatch_for(device_of(self.network))
        return partial(_seconds, clock=time.perf_counter if torch.get_num_threads() > 1 else time.process_time)


def latency_ratio(
    dense: nn.Module | Timed,
    pruned: nn.Module,
    example_inputs: Any,
    pairs: int = 30,
    warmup: int = 3,
    threads: int | None = None,
    seed: int = 0,
    stopwatch: Stopwatch | None = None,
    enough: float | None = None,
    clock: str | Clock = TORCH,
) -> LatencyRatio:
    """Compare two models by interleaved pairs of forward passes.

    Args:
        dense: Model to compare with, or the same made ready once to be timed often.
        pruned: Model to judge, on the same device.
        example_inputs: Batch in any form accepted by `as_inputs`.
        pairs: Timed pairs at most; 30 give a usable interval, fewer than 6 only a range.
        warmup: Untimed pairs before the timed pairs.
        threads: CPU threads during the measurement; default: PyTorch's present number.
        seed: Seed of the bootstrap.
        stopwatch: Function that times one call; None: chosen by `stopwatch_for`.
        enough: Width of the interval, or of the range, at which timing stops, after 4 pairs or more; None: all pairs
            are timed.
        clock: Runtime in which both run: "torch", "compile", "onnxruntime", "onnxruntime_int8" or "openvino"; or a
            callable `(network, inputs) -> seconds`.

    Raises:
        ValueError: If there is no pair, the models are on different devices or have no weights, the clock is unknown,
            or a runtime cannot take a model.
    """
    check_clock(clock)
    first = dense.network if isinstance(dense, Timed) else dense
    device = shared_device(first, pruned)
    if pairs < 1:
        raise ValueError(f"Expected at least one pair, but got pairs={pairs}. 30 give a usable interval.")
    inputs = as_inputs(example_inputs).to(device)
    with evaluating(first, pruned), _quiet(threads) as held:
        both = dense if isinstance(dense, Timed) else Timed(dense, inputs, clock), Timed(pruned, inputs, clock)
        runs, seconds = (both[0].run, both[1].run), stopwatch or both[1].stopwatch
        for i in range(warmup):
            _timed_pair(runs, seconds, swapped=i % 2 == 1)
        times: list[tuple[float, float]] = []
        while len(times) < pairs and not (enough is not None and _agree(times, enough, seed)):
            times.append(_timed_pair(runs, seconds, swapped=(warmup + len(times)) % 2 == 1))
    medians = np.median(times, axis=0) * 1e3
    return LatencyRatio(
        ratio=median_interval(_ratios(times), seed=seed),
        dense_ms=float(medians[0]),
        pruned_ms=float(medians[1]),
        pairs=len(times),
        batch_size=inputs.n_samples,
        device=str(device),
        threads=held,
    )


def median_latency(
    model: nn.Module | Timed, inputs: ModelInputs, repeats: int = 20, threads: int | None = None
) -> float:
    """Return the median time of one forward pass in milliseconds, after three untimed passes.

    Args:
        model: Model, timed in evaluation mode; or the same made ready to be timed, in any runtime.
        inputs: Batch on the model's device.
        repeats: Timed passes, at least one.
        threads: CPU threads during the measurement; None: PyTorch's present number.
    """
    one = model if isinstance(model, Timed) else Timed(model, inputs)
    shared_device(one.network)
    with evaluating(one.network), _quiet(threads):
        times = [one.stopwatch(one.run) for _ in range(3 + repeats)]
    return float(np.median(times[3:])) * 1e3


def stopwatch_for(device: torch.device) -> Stopwatch:
    """Return a function that runs a function once and returns the seconds of the run on `device`.

    Where PyTorch uses one thread of a CPU, the seconds are processor time of the thread; with several, wall time.
    """
    if device.type == "cpu":
        return partial(_seconds, clock=time.perf_counter if torch.get_num_threads() > 1 else time.thread_time)
    if device.type == "cuda":
        return partial(_cuda_seconds, device=device)
    return partial(_synchronised_seconds, device=device)


def _seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start


def _told_seconds(run: Callable[[], object]) -> float:
    """Return the seconds that a clock itself returns."""
    seconds: Any = run()
    return float(seconds)


def _cuda_seconds(run: Callable[[], object], device: torch.device) -> float:
    start: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _synchronised_seconds(run: Callable[[], object], device: torch.device) -> float:
    def finished() -> None:
        run()
        torch.accelerator.synchronize(device)

    torch.accelerator.synchronize(device)
    return _seconds(finished, time.perf_counter)


def _timed_pair(
    runs: tuple[Callable[[], object], Callable[[], object]], seconds: Stopwatch, swapped: bool
) -> tuple[float, float]:
    if swapped:
        second = seconds(runs[1])
        return seconds(runs[0]), second
    first = seconds(runs[0])
    return first, seconds(runs[1])


def _ratios(times: Sequence[tuple[float, float]]) -> list[float]:
    return [pruned / dense for dense, pruned in times]


def _agree(times: Sequence[tuple[float, float]], enough: float, seed: int) -> bool:
    """Whether the pairs suffice for a narrow interval."""
    if len(times) < FEWEST:
        return False
    found = median_interval(_ratios(times), seed=seed)
    return found.high - found.low <= enough


def shared_device(*models: nn.Module) -> torch.device:
    """Return the device of models; raise ValueError for several devices, or for a model without values."""
    devices = [device_of(model) for model in models]
    if len(set(devices)) > 1:
        found = " and ".join(map(str, devices))
        raise ValueError(f"Expected both models on one device, but got {found}. Move one with `.to(device)`.")
    if devices[0].type == "meta":
        raise ValueError("Expected a model with weights, but it is on the meta device. Only `count_macs` works there.")
    return devices[0]


@contextmanager
def _quiet(threads: int | None) -> Iterator[int]:
    """Fix the number of threads and keep the garbage collector out of the timings."""
    before, collecting = torch.get_num_threads(), gc.isenabled()
    held = threads or before
    gc.collect(1)  # young objects only; all objects of a large process take half a second
    gc.disable()
    torch.set_num_threads(held)
    try:
        yield held
    finally:
        torch.set_num_threads(before)
        if collecting:
            gc.enable()
