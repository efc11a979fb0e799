"""Clocks: runtimes compute the network's outputs, and budgets of latency are met by the requested clock."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases.paths import ROOT
from cases.planning.networks import cnn, images, vit
from torch import nn

from prunerecover import Budget, apply_plan, plan_depth, plan_pruning, plan_width
from prunerecover.cost.latency import Timed, latency_ratio, median_latency
from prunerecover.cost.units.clock_names import CLOCK_NAMES, clock_name
from prunerecover.model.batches import ModelInputs, as_inputs, call
from prunerecover.runtimes import clocks
from prunerecover.runtimes.clocks import CLOCKS, run_in
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import edited
from prunerecover.surgery.saved_cost import budget_used

RUNTIMES = [name for name in ("onnxruntime", "openvino") if find_spec(name)]


def by_parameters(network: nn.Module, inputs: ModelInputs) -> float:
    """Clock without noise, with the number of parameters as latency."""
    return 1e-6 * sum(parameter.numel() for parameter in network.parameters())


def saved(model: nn.Module, edits: Any) -> float:
    dense = by_parameters(model, as_inputs(torch.zeros(1)))
    with edited(model, edits):
        return 1 - by_parameters(model, as_inputs(torch.zeros(1))) / dense


@pytest.mark.slow
@pytest.mark.parametrize("clock", RUNTIMES)
@pytest.mark.parametrize("pruned", [False, True])
def test_runtimes_compute_what_the_network_computes(clock: str, pruned: bool) -> None:
    network, inputs = vit(), as_inputs(images()[0][0])
    if pruned:
        apply_plan(network, plan_depth(network, remove={"attention": 1}, batches=images(4), search="one_shot"))
    with torch.no_grad():
        right = call(network, inputs).numpy()
    found = run_in(clock, network, inputs)()
    output = found[0] if isinstance(found, list) else next(iter(found.values()))
    assert np.allclose(output, right, atol=0.05 if clock == "openvino" else 1e-4)  # in bf16 where a CPU has it


@pytest.mark.slow
@pytest.mark.parametrize("plan", [plan_pruning, plan_width, plan_depth])
def test_a_budget_is_met_by_the_clock_that_is_asked_for(plan: Any) -> None:
    model = vit()
    found = plan(model, Budget(latency=0.3, clock=by_parameters), batches=images(4))
    assert saved(model, found.edits) == pytest.approx(0.3, abs=0.08)
    assert saved(model, found.edits) > 0.28
    assert found.made_by.arguments["budget"] == {"latency": 0.3, "clock": clock_name(by_parameters)}


@pytest.mark.slow
def test_an_amount_of_time_is_that_of_the_clock() -> None:
    model = vit()
    milliseconds = 1e3 * by_parameters(model, as_inputs(torch.zeros(1)))
    plan = plan_pruning(model, Budget(latency=f"{0.7 * milliseconds:.6f}ms", clock=by_parameters), batches=images(4))
    assert saved(model, plan.edits) == pytest.approx(0.3, abs=0.08)


def test_what_a_plan_uses_of_a_budget_is_measured_by_its_clock() -> None:
    model, batch = cnn(), as_inputs(images()[0][0])
    plan = plan_width(model, Budget(macs=0.3), batches=images(), importance="magnitude")
    used = budget_used(plan, Budget(latency=0.3, clock=by_parameters), model, lambda: batch)
    assert used["latency"] == pytest.approx(saved(model, plan.edits))


def test_a_network_made_ready_once_is_timed_as_often_as_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = list[nn.Module]()

    def runtime(network: nn.Module, _: ModelInputs) -> Any:
        ready.append(network)
        return lambda: None

    monkeypatch.setattr(clocks, "CLOCKS", {**CLOCKS, "compile": runtime})
    dense, pruned, inputs = cnn(), cnn(), as_inputs(images()[0][0])
    timed = Timed(dense, inputs, "compile")
    for _ in range(2):
        latency_ratio(timed, pruned, inputs, pairs=1, clock="compile")
    assert median_latency(timed, inputs) >= 0
    assert [network is dense for network in ready] == [True, False, False]


def test_every_clock_has_a_runtime_and_a_budget_imports_none() -> None:
    assert tuple(CLOCKS) == CLOCK_NAMES
    made = "import sys; from prunerecover import Budget; Budget(latency=0.3, clock='openvino')"
    code = f"{made}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stdout == "False\n"


def test_budgets_keep_their_clock() -> None:
    budget = Budget(latency=0.4, macs=0.2, clock="onnxruntime")
    assert [one.clock for one in budget.each()] == [None, "onnxruntime"]
    assert [one.clock for one in budget.in_steps(2)] == ["onnxruntime"] * 2
    left = budget.remaining([{"latency": 0.2, "macs": 0.0}])
    assert left is not None
    assert left.clock == "onnxruntime"
    assert Budget(**budget.to_dict()) == budget


def test_searches_by_other_clocks_have_other_stores(tmp_path: Path) -> None:
    session, begun = Session(cnn(), images()), list[tuple[object, ...]]()

    class Store:
        def begin(self, _: nn.Module, *about: object, **__: object) -> None:
            begun.append(about)

    for clock in ("torch", "openvino"):
        session.in_shares(Budget(latency=0.3, clock=clock))
        session.begin(Store())  # type: ignore[arg-type]
    assert begun[0][-1] == "torch"
    assert begun[1][-1] == "openvino"


def test_bad_clocks_say_what_to_give() -> None:
    with pytest.raises(ValueError, match="Expected argument clock to be one of torch, .*, but got 'tensorrt'"):
        Budget(latency=0.3, clock="tensorrt")
    with pytest.raises(TypeError, match=r"Expected argument clock to be a name or a callable .*, but got 3"):
        Budget(latency=0.3, clock=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Expected a clock with a latency alone, .*Budget\(latency=0.3, clock="):
        Budget(macs=0.3, clock="onnxruntime")
    for value in (None, 0.0, -1.0, float("inf"), float("nan"), True, "5 ms"):
        with pytest.raises(ValueError, match=r"return the seconds of a forward pass, a positive number, but got"):
            latency_ratio(cnn(), cnn(), images()[0][0], pairs=1, clock=lambda *_, value=value: value)  # type: ignore[misc]


def test_runtimes_that_are_missing_or_elsewhere_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = as_inputs(images()[0][0])
    with pytest.raises(ValueError, match="Expected a network on the CPU for clock='openvino', but it is on meta"):
        run_in("openvino", cnn().to("meta"), inputs)

    def missing(name: str) -> Any:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(clocks.importlib, "import_module", missing)
    with pytest.raises(ValueError, match=r"onnxruntime to be installed for clock='onnxruntime'.*pip install onnxrunt"):
        run_in("onnxruntime", cnn(), inputs)
