"""Names: a public argument means one thing everywhere; former names warn, mean the present name, and are listed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.models.routed_language import encoding, questions
from cases.models.tiny import tiny_llama, tiny_timm
from cases.paths import ROOT
from torch import nn

import prunerecover
from prunerecover import DistillRecover, RoutedLoRARecover, compare, find_groups, find_units, plan_omission_sets
from prunerecover.callbacks.planning.width import WidthPlanning
from prunerecover.depth.arguments import DepthConfig
from prunerecover.former import END, FORMER
from prunerecover.plan.evidence import PlanningCost
from prunerecover.recipes.cli.names import with_method_class
from prunerecover.recipes.plan_methods.joint import JointPlan
from prunerecover.recipes.plan_methods.pudding import PuddingPlan
from prunerecover.width.arguments import WidthConfig

NET = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
X = torch.zeros(2, 4)
COST = PlanningCost(seconds=1.0)
TASKS = {"first": questions(2, first=5, seed=1)}


def units() -> object:
    return find_units(NET, X, "layer")


def distilled(**weight: Any) -> float:
    return DistillRecover(**weight).teacher_weight


def reported(**cost: Any) -> object:
    return compare(NET, NET, X, pairs=0, **cost).planning_cost


def refused(**objectives: Any) -> str:
    with pytest.raises(ValueError, match="Expected objectives among") as error:
        plan_omission_sets(tiny_llama(), TASKS, encoding(), 1, **objectives)
    return str(error.value)


def pudding(**arguments: Any) -> tuple[object, ...]:
    method = PuddingPlan({"first": "data"}, 1, **arguments)
    return method.objectives, method.router_objective


def method(name: str) -> list[str]:
    return with_method_class(["--method", name])


def joint(**how: Any) -> object:
    return JointPlan(macs=0.3, **how).trials


def routed(**weight: Any) -> float:
    return RoutedLoRARecover("sets.json", **weight).teacher_weight


BOTH: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "find_units(model, kinds, batches)": (lambda: find_units(NET, "layer", X), units),
    "find_units(example_inputs=)": (lambda: find_units(NET, kinds="layer", example_inputs=X), units),
    "find_groups(example_inputs=)": (lambda: find_groups(NET, example_inputs=X), lambda: find_groups(NET, X)),
    "DistillRecover(alpha=)": (lambda: distilled(alpha=0.2), lambda: distilled(teacher_weight=0.2)),
    "RoutedLoRARecover(distill=)": (lambda: routed(distill=0.2), lambda: routed(teacher_weight=0.2)),
    "allocation='tolerance'": (
        lambda: WidthConfig(allocation="tolerance"),
        lambda: WidthConfig(allocation="fair_pruner"),
    ),
    "search='joint'": (lambda: DepthConfig(search="joint"), DepthConfig),
    "plan_omission_sets(losses=)": (lambda: refused(losses=("luck",)), lambda: refused(objectives=("luck",))),
    "compare(search=)": (lambda: reported(search=COST), lambda: reported(planning_cost=COST)),
    "Report.search": (lambda: compare(NET, NET, X, pairs=0, planning_cost=COST).search, lambda: COST),
    "--method fair": (lambda: method("fair"), lambda: method("fair_pruner")),
    "--method boundary_published": (lambda: method("boundary_published"), lambda: method("boundary_dpt")),
    "--method.search recovered": (lambda: joint(search="recovered"), lambda: joint(recover=True)),
    "--method.losses": (lambda: pudding(losses=["likelihood"]), lambda: pudding(objectives=["likelihood"])),
    "--method.router_loss": (lambda: pudding(router_loss="mse"), lambda: pudding(router_objective="mse")),
}


# The type of an argument, wherever a public function or class takes it; former names and returned data aside.
TYPES = {
    "alpha": {"float"},
    "loss": {"Loss", "collections.abc.Callable[[torch.nn.modules.module.Module, typing.Any], torch.Tensor]"},
    "merge": {"typing.Literal['copy', 'at_surgery', 'never']"},
    "search": {"str"},
    "teacher_weight": {"float"},
}


@pytest.mark.parametrize("name", TYPES)
def test_an_argument_means_one_thing_everywhere(name: str) -> None:
    found = set()
    for public in prunerecover.__all__:
        value = getattr(prunerecover, public)
        if callable(value) and public != "Report" and f"{public}({name}=)" not in FORMER:
            parameter = inspect.signature(value).parameters.get(name)
            found |= {str(parameter.annotation).removesuffix(" | None")} if parameter else set()
    assert found == TYPES[name]


@pytest.mark.parametrize("name", FORMER)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_former_name_warns_and_means_the_present_name(name: str) -> None:
    former, present = BOTH[name]
    with pytest.warns(FutureWarning) as warned:
        found = former()
    assert str(warned[0].message) == f"Use {FORMER[name]}: {name} ends with version {END}."
    assert warned[0].filename == __file__ or name.startswith(("--", "allocation"))
    assert found == present()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_joint_search_by_a_loss_is_greedy_now() -> None:
    assert DepthConfig(search="joint", importance="cross_entropy").search == "greedy"


def test_former_names_are_listed_with_their_end() -> None:
    page = (ROOT / "docs" / "faq.md").read_text().partition("## Former names")[2]
    assert f"until version `{END}`." in page
    listed = [line.split("`")[1::2] for line in page.splitlines() if line.startswith("| `")]
    assert listed == [[name, present] for name, present in FORMER.items()]


def test_present_names_do_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    for _, present in BOTH.values():
        present()
    assert not [one for one in recwarn if one.category is FutureWarning]
    assert find_units(tiny_timm(), kinds="attention")


def test_checkpoints_keep_the_name_of_an_allocation_that_they_began_with() -> None:
    signature = WidthPlanning(allocation="fair_pruner", tolerance=0.05).signature
    assert signature["allocation"] == "tolerance"
