"""Costs against closed forms, and latency against a controlled clock."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from cases.engine import unchanged
from torch import Tensor, nn

from prunerecover.cost.environment import cpu_name, device_name, versions
from prunerecover.cost.latency import latency_ratio, median_latency, stopwatch_for
from prunerecover.cost.measurement import Measurement, measure
from prunerecover.cost.memory import peak_activations
from prunerecover.model.batches import as_inputs

CPU = torch.device("cpu")
X = torch.ones(4, 8)
ON_META = nn.Linear(8, 2, device="meta")


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


class Named(nn.Module):
    """Writes each run into a shared diary."""

    def __init__(self, name: str, diary: list[str]) -> None:
        super().__init__()
        self.name, self.diary = name, diary

    def forward(self, x: Tensor) -> Tensor:
        self.diary.append(self.name)
        return x


def test_costs_equal_closed_form() -> None:
    found = measure(mlp(), X)
    assert isinstance(found, Measurement)
    assert found.parameters == 8 * 16 + 16 + 16 * 2 + 2
    assert found.parameter_bytes == 4 * found.parameters
    assert (found.macs, found.batch_size, found.macs_per_sample) == (4 * (8 * 16 + 16 * 2), 4, 160)
    assert found.latency_ms is not None
    assert found.latency_ms > 0
    assert (found.device, found.dtype, found.threads) == ("cpu", "torch.float32", torch.get_num_threads())
    assert found.versions["torch"] == version("torch")


def test_shared_parameters_count_once_and_bytes_follow_the_type() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).to(torch.float64)
    model[1].weight = model[0].weight
    found = measure(model, torch.ones(1, 4, dtype=torch.float64), repeats=0)
    assert (found.parameters, found.parameter_bytes, found.dtype) == (16, 128, "torch.float64")
    assert found.latency_ms is None


def test_peak_is_the_largest_pair_of_neighbours_in_a_chain_where_views_take_nothing() -> None:
    widths = [8, 32, 128, 64, 2]
    layers = [nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False)]
    views = nn.Unflatten(1, (4, 32)), nn.Flatten()
    peak, source = peak_activations(nn.Sequential(*layers[:2], *views, *layers[2:]), as_inputs(X), CPU)
    assert (peak, source) == (4 * 4 * (128 + 64), "tensor sizes")


def test_peak_is_the_same_without_weights() -> None:
    expected, _ = peak_activations(mlp(), as_inputs(X), CPU)
    with torch.device("meta"):
        model = mlp()
    assert peak_activations(model, as_inputs(X.to("meta")), torch.device("meta"))[0] == expected


@pytest.mark.parametrize("warmup", [0, 3])
def test_pairs_are_interleaved_and_swap_their_order(warmup: int) -> None:
    diary: list[str] = []
    latency_ratio(Named("dense", diary), Named("pruned", diary), X, pairs=4, warmup=warmup)
    pairs = [tuple(diary[i : i + 2]) for i in range(0, len(diary), 2)]
    assert len(pairs) == warmup + 4
    assert pairs == [("dense", "pruned") if i % 2 == 0 else ("pruned", "dense") for i in range(len(pairs))]


def test_ratio_is_right_on_a_machine_that_slows_down_tenfold() -> None:
    diary: list[str] = []
    calls = iter(range(10_000))

    def drifting(run: Callable[[], object]) -> float:
        run()
        slowness = 1 + 9 * next(calls) / 200
        return slowness * (0.020 if diary[-1] == "dense" else 0.015)

    found = latency_ratio(
        Named("dense", diary), Named("pruned", diary), X, pairs=100, warmup=0, stopwatch=drifting, seed=1
    )
    assert found.ratio.value == pytest.approx(0.75, rel=0.02)
    assert 0.75 in found.ratio
    assert found.pairs == 100
    assert found.batch_size == 4
    assert 20 < found.dense_ms < 200


@pytest.mark.parametrize(("spread", "pairs"), [(0.0, 4), (0.019, 4), (0.2, 20)])
def test_no_more_pairs_are_timed_than_it_takes_to_agree(spread: float, pairs: int) -> None:
    times = iter([1.0, 0.5 - spread / 2, 0.5 + spread / 2, 1.0] * 10)
    found = latency_ratio(mlp(), mlp(), X, pairs=20, warmup=0, stopwatch=lambda run: next(times), enough=0.02)
    assert found.pairs == pairs
    assert 0.5 in found.ratio


def test_outliers_do_not_move_the_ratio() -> None:
    times = iter([1.0, 0.5, 0.5, 1.0, 1.0, 50.0, 0.5, 1.0, 1.0, 0.5])
    found = latency_ratio(mlp(), mlp(), X, pairs=5, warmup=0, stopwatch=lambda run: next(times))
    assert found.ratio.value == 0.5
    assert (found.dense_ms, found.pruned_ms) == (1000, 500)


def test_settings_of_the_process_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    before = torch.get_num_threads()

    def failing(run: Callable[[], object]) -> float:
        assert not gc.isenabled()
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        latency_ratio(mlp(), mlp(), X, threads=3, stopwatch=failing)
    assert chosen == [3, before]
    assert gc.isenabled()


def test_measuring_leaves_the_model_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout()).train()
    with unchanged(model):
        measure(model, X, repeats=1)
        latency_ratio(model, copy.deepcopy(model), X, pairs=1, warmup=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: measure(ON_META, X), "Expected a model with weights, but it is on the meta device"),
        (lambda: median_latency(ON_META, as_inputs(X)), "Expected a model with weights, but it is on the meta device"),
        (lambda: latency_ratio(mlp(), mlp(), X, pairs=0), "Expected at least one pair, but got pairs=0"),
        (lambda: latency_ratio(mlp(), ON_META, X), "Expected both models on one device, but got cpu and meta"),
    ],
)
def test_bad_measurements_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_environment_names_processor_and_packages(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Imaginary 9000 @ 3 GHz\n")
    assert cpu_name(cpuinfo) == "Imaginary 9000 @ 3 GHz"
    assert cpu_name(tmp_path / "missing")
    assert device_name(CPU) == cpu_name()
    assert {"python", "prunerecover", "torch", "lightning"} <= set(versions())


@pytest.mark.parametrize(("threads", "clock"), [(1, "thread_time"), (2, "perf_counter")])
def test_a_single_thread_is_timed_by_what_it_computes(
    threads: int, clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([10.0, 12.5])
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(f"prunerecover.cost.latency.time.{clock}", lambda: next(moments))
    assert stopwatch_for(CPU)(lambda: None) == 2.5


def test_threads_that_are_held_decide_how_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The given number of threads decides, even if the process has another."""
    asked: list[str] = []
    monkeypatch.setattr("prunerecover.cost.latency._seconds", lambda run, clock: asked.append(clock.__name__) or 1.0)
    for threads in (1, 2):
        latency_ratio(mlp(), mlp(), X, pairs=1, warmup=0, threads=threads)
    assert asked == ["thread_time"] * 2 + ["perf_counter"] * 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_is_measured_by_its_own_clock_and_allocator() -> None:
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)])
    found = measure(model, torch.ones(256, 1024), device="cuda")
    assert next(model.parameters()).device == CPU
    assert found.device.startswith("cuda")
    assert found.activation_source == "cuda allocator"
    assert found.activation_bytes >= 2 * 256 * 1024 * 4
    assert found.latency_ms is not None
    assert found.macs == 4 * 256 * 1024 * 1024
