"""An importance of the user's own: passed, or by the name that it was registered with."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from cases.engine import batches_of, build
from cases.models.habits import Plain
from cases.trainers import fit, prune

from prunerecover import Budget, Plan, find_units, plan_depth
from prunerecover.callbacks import DepthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.importance.context import DepthContext
from prunerecover.importance.registry import (
    IMPORTANCES,
    RegisteredImportance,
    check_finite,
    importance_of,
    register_importance,
)
from prunerecover.width.allocation.registry import ALLOCATIONS, allocation_of, register_allocation

ATTENTIONS = [f"blocks.{number}.attn" for number in range(4)]


def later_first(context: DepthContext) -> dict[str, float]:
    """Deep units matter less."""
    return {unit.name: -float(place) for place, unit in enumerate(context.units)}


class Favourite:
    """Keeps what has a word in its name."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __call__(self, context: DepthContext) -> dict[str, float]:
        return {unit.name: float(self.word in unit.name) for unit in context.units}


def planned(importance: object, **arguments: object) -> Plan:
    arguments = {"remove": {"attention": 2}, "replace": "zero", **arguments}
    return plan_depth(build("timm"), batches=batches_of("timm"), importance=importance, **arguments)


def test_a_callable_decides_what_goes() -> None:
    names = [unit.name for unit in find_units(build("timm"), kinds=("attention",))]
    plan = planned(later_first)
    assert set(plan.removed["attention"]) == set(names[-2:])
    assert plan.made_by.method == "depth/later_first"
    assert planned(Favourite("blocks.3")).removed["attention"] == tuple(names[:2])


def test_a_name_means_the_callable_that_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(IMPORTANCES, "later_first", raising=False)
    register_importance("later_first", later_first)
    assert planned("later_first").edits == planned(later_first).edits
    assert register_importance("later_first", later_first).name == "later_first"
    with pytest.raises(ValueError, match="name that no importance has, but 'later_first' is taken"):
        register_importance("later_first", Favourite("x"))
    del IMPORTANCES["later_first"]


def test_shares_of_cost_trust_that_a_callable_compares_kinds() -> None:
    assert planned(later_first, remove=None, budget=Budget(macs=0.1)).removed


def test_a_unit_without_an_importance() -> None:
    with pytest.raises(ValueError, match=r"to return a score for each of 4, but .* have none"):
        planned(lambda context: {})


def test_an_unknown_name_and_what_is_no_callable() -> None:
    with pytest.raises(ValueError, match=r"importance to be one of output_divergence, .* or a callable .*'mine'"):
        planned("mine")
    with pytest.raises(TypeError, match="importance to be a name or a callable .*, but got int"):
        DepthPrune(remove={"attention": 1}, importance=3)


def test_a_callable_decides_in_a_fit_and_a_resumed_run_knows_it(tmp_path: Path) -> None:
    module = Plain()
    trainer = fit(tmp_path, module, prune(importance=later_first, remove={"attention": 1}), epochs=2)
    (plan,) = Ledger.of(module).plans.values()
    assert plan.removed == {"attention": ("blocks.2.attn",)}
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    other = prune(importance=Favourite("blocks"), remove={"attention": 1})
    with pytest.raises(ValueError, match="with the arguments of the run that is resumed .*later_first.*Favourite"):
        fit(tmp_path, Plain(), other, epochs=3, resume=tmp_path / "last.ckpt")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_importances_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(
        ValueError, match=r"finite importances from 'taylor', but 1 of 2 are not \(b: .*Check the model"
    ):
        check_finite({"a": 1.0, "b": value}, "taylor")


@pytest.mark.parametrize(
    ("found", "told"),
    [(None, "NoneType"), ([1.0], "list"), (dict.fromkeys(ATTENTIONS), "blocks.0.attn: NoneType")],
    ids=["nothing", "list", "no number"],
)
def test_what_is_no_mapping_of_numbers_is_refused(found: object, told: str) -> None:
    with pytest.raises(TypeError, match=rf"Expected 'score' to return {{name: score}}, but got {told}"):
        planned(RegisteredImportance("score", lambda context: found))


@pytest.mark.parametrize("register", [register_importance, register_allocation])
def test_registries_take_a_word_and_something_to_call(register: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="Expected a word as the name of the .*, but got <function later_first"):
        register(later_first, "mine")
    with pytest.raises(TypeError, match="Expected a callable as the .* 'mine', but got NoneType"):
        register("mine", None)
    with pytest.raises(TypeError, match=r"'mine', but got the class Favourite. Pass Favourite\(\.\.\.\)"):
        register("mine", Favourite)


def test_entries_serve_where_names_do() -> None:
    assert importance_of(IMPORTANCES["taylor"]) is IMPORTANCES["taylor"]
    assert importance_of(IMPORTANCES["magnitude"]) is IMPORTANCES["magnitude"]
    assert allocation_of(ALLOCATIONS["uniform"]) is ALLOCATIONS["uniform"]
