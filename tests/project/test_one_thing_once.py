"""Work with a single place: one module traces networks, once for all purposes, and leaves them unchanged."""

from __future__ import annotations

import ast
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from cases.paths import ROOT
from cases.width.plan_width import cnn
from torch import Tensor, nn

from prunerecover import Budget, find_sites, plan_depth, plan_pruning, plan_width
from prunerecover.graph import trace

# PyTorch's modes for operations or functions, and their purposes.
MODES = {
    "prunerecover/graph/dimensions/watching.py": "TorchDispatchMode",  # tells observers of a traced pass
    "prunerecover/cost/macs.py": "FlopCounterMode FakeTensorMode",  # count, and let shapes run without values
    "prunerecover/cost/memory.py": "TorchDispatchMode",  # counts bytes that are alive
    "prunerecover/recovery/branch_ends.py": "TorchFunctionMode",  # ends a pass at one sum, which is copied
    "prunerecover/families/libraries/empty_models.py": "TorchFunctionMode",  # leaves initialisation out
}
OBSERVERS = {"watch": "graph.dimensions.watching", "Recorder": "graph.recorder"}
OBSERVERS |= {"Follower": "graph.dimensions.follower"}
FOLDERS = ("prunerecover", "callbacks", "recipes")
X = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
LABELLED = [(X, torch.arange(8) % 4)]


def test_one_class_is_called_planner() -> None:
    files = chain.from_iterable((ROOT / folder).rglob("*.py") for folder in FOLDERS)
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    names = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    assert [name for name in names if name.endswith("Planner")] == ["Planner"]


def imported() -> list[tuple[str, str, str]]:
    """Return file, module and name of each import of a possible mode or observer."""
    found = []
    for path in chain.from_iterable((ROOT / folder).rglob("*.py") for folder in FOLDERS):
        source = path.read_text()
        if any(name in source for name in ("Mode", *OBSERVERS)):
            nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom))
            file = str(path.relative_to(ROOT))
            found += [(file, str(node.module), alias.name) for node in nodes for alias in node.names]
    return found


def test_one_module_observes_what_a_network_computes() -> None:
    modes: dict[str, set[str]] = {}
    found = imported()
    for file, module, name in found:
        if module.startswith("torch") and name.endswith("Mode"):
            modes.setdefault(file, set()).add(name)
    assert modes == {file: set(names.split()) for file, names in MODES.items()}
    for name, module in OBSERVERS.items():
        takers = {file for file, of, what in found if (of, what) == (f"prunerecover.{module}", name)}
        assert "prunerecover/graph/trace.py" in takers
        assert takers <= {"prunerecover/graph/trace.py", "prunerecover/graph/build.py"}  # builds on what is recorded


@pytest.mark.parametrize(
    "look",
    [
        lambda model: find_sites(model, X),
        lambda model: find_sites(model, X, ("layer", "neuron", "channel"), include_strided=True),
        lambda model: plan_depth(model, remove={"layer": 2}, batches=[X], search="one_shot"),
        lambda model: plan_width(model, Budget(macs=0.2), batches=LABELLED),
    ],
)
def test_units_and_groups_are_read_off_one_pass(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    traced, original = list[nn.Module](), trace._recorded

    def recorded(model: nn.Module, *others: Any, training: bool = False) -> Any:
        traced.extend([] if training else [model])
        return original(model, *others, training=training)

    monkeypatch.setattr(trace, "_recorded", recorded)
    torch.manual_seed(0)
    look(Plain().eval())
    assert len(traced) == 1


class Plain(nn.Module):
    """Blocks of equal width, whose shortcuts need no rewriting."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, 2, 1), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        for block in self.blocks:
            x = (x + block(x)).relu()
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def held(model: nn.Module) -> dict[str, Any]:
    """Return all attributes of a network's modules by path and name, and their classes with forwards."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        found[path] = (id(module), type(module), type(module).forward)
        for name, value in vars(module).items():
            found[f"{path}:{name}"] = list(value.items()) if isinstance(value, dict) else value
    return found | {f"nn.Module.{name}": value for name, value in vars(nn.Module).items() if callable(value)}


def same(now: Any, then: Any) -> bool:
    if isinstance(then, list) and isinstance(now, list):
        return len(now) == len(then) and all(map(same, now, then))
    if isinstance(then, tuple) and isinstance(now, tuple):
        return len(now) == len(then) and all(map(same, now, then))
    return now is then or (not isinstance(then, Tensor) and bool(now == then))


def unreachable(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="Expected"):
        plan_depth(model, remove={"layer": 99}, batches=[X])


@pytest.mark.parametrize(
    "plan",
    [
        lambda model: plan_depth(model, remove={"layer": 2}, batches=[X], search="one_shot"),
        pytest.param(lambda model: plan_depth(model, Budget(macs=0.1), batches=[X]), marks=pytest.mark.slow),
        lambda model: plan_width(model, Budget(macs=0.2), batches=LABELLED),
        pytest.param(lambda model: plan_pruning(model, Budget(macs=0.3), batches=LABELLED), marks=pytest.mark.slow),
        unreachable,
    ],
)
@pytest.mark.parametrize("make", [cnn, Plain])
def test_planning_leaves_modules_as_they_are(make: Callable[[], nn.Module], plan: Callable[[nn.Module], Any]) -> None:
    torch.manual_seed(0)
    model, calls = make().train(), list[int]()
    handle = next(model.children()).register_forward_hook(lambda *_: calls.append(1))
    values = {name: value.clone() for name, value in model.state_dict().items()}
    before, random = held(model), torch.get_rng_state()
    plan(model)
    after = held(model)
    assert not {name for name in before.keys() | after.keys() if not same(after.get(name), before.get(name))}
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    handle.remove()
