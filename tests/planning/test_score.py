"""Plans of nearly the same divergence, compared by the user's score of each pruned network."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.depth.interrupted import Interrupts
from cases.fits.ranks import two_ranks
from cases.planning.networks import Residual, images, vit
from torch import Tensor, nn

from prunerecover import Budget, Plan, Prune, apply_plan, plan_pruning
from prunerecover.callbacks.planning.joint import JointPlanning
from prunerecover.library import moments
from prunerecover.plan.evidence import SplitEvidence, TriedSplit
from prunerecover.planning import budget_search
from prunerecover.planning.score import Score, score_of

BUDGET = Budget(macs=0.6)
INPUTS = images(1)[0][0]
WEAK = 1e-2, 0.1


def planned(model: nn.Module | None = None, **how: Any) -> Plan:
    return plan_pruning(model or vit(), BUDGET, batches=images(4), kinds=("attention", "mlp", "neuron", "head"), **how)


def splits(plan: Plan) -> tuple[TriedSplit, ...]:
    return SplitEvidence.of(plan.evidence).splits


def same(one: Plan, other: Plan) -> bool:
    return one.edits == other.edits and all(
        torch.equal(value, other.tensors[key]) for key, value in one.tensors.items()
    )


def pruned_by(plan: Plan, model: nn.Module) -> nn.Module:
    network = copy.deepcopy(model)
    apply_plan(network, plan)
    return network


class Watched:
    """Score that keeps the output of each network.

    Args:
        values: Values by call.
    """

    def __init__(self, *values: float) -> None:
        self.values, self.outputs = values, list[Tensor]()

    def __call__(self, network: nn.Module) -> float:
        assert not any(module.training for module in network.modules())
        assert not torch.is_grad_enabled()
        self.outputs.append(network(INPUTS))
        return self.values[len(self.outputs) - 1]


@pytest.fixture(scope="module", autouse=True)
def _weak_ridge() -> Iterator[None]:
    """Fits of a weak ridge, with which the search meets a rival."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "RIDGE", WEAK)
        yield


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """Return the plan without a score, and the store of its search."""
    store = tmp_path_factory.mktemp("plain") / "store"
    return planned(store=store), store


@pytest.fixture
def store(plain: tuple[Plan, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the store: a search with a score finds everything but its rival, of 30% more, and scores."""
    monkeypatch.setattr(budget_search, "NEAR", 0.5)
    return shutil.copytree(plain[1], tmp_path / "store")


def of_a_module(score: Callable[[nn.Module], float]) -> Callable[[nn.Module], float]:
    """Return a score with a name of its own, as a store needs."""

    def named(network: nn.Module) -> float:
        return score(network)

    named.__qualname__ = "named"
    return named


@pytest.mark.slow
@pytest.mark.parametrize("values", [(1.0, 2.0), (-0.5, -0.7), (3.0, 3.0)])
def test_the_plan_of_the_best_score_wins(values: Sequence[float], plain: tuple[Plan, Path], store: Path) -> None:
    """Equal scores leave the plan of no score."""
    score = Watched(*values)
    plan = planned(score=of_a_module(score), store=store)
    first, second = splits(plan)
    best = values.index(max(values))
    assert same(plan, plain[0]) == (best == 0)
    assert [first.score, second.score] == list(values)
    assert first.model_copy(update={"score": None}) == splits(plain[0])[0]
    assert (first.divergence or 0) < (second.divergence or 0) < 1.5 * (first.divergence or 0)
    assert all(saved >= 0.599 for one in (first, second) for saved in dict(one.saved).values())
    assert SplitEvidence.of(plan.evidence).picked == best
    assert "picked" not in plain[0].evidence
    assert plan.made_by.arguments["score"] == "named"
    assert f"{splits(plan)[best].divergence:.3g}" in str(plan)
    assert "by the given function" in str(plan)
    assert torch.equal(pruned_by(plan, vit())(INPUTS), score.outputs[best]), "the network of the plan was scored"
    assert not torch.equal(*score.outputs)


@pytest.mark.slow
def test_networks_are_the_scores_own_and_random_numbers_are_equal(store: Path) -> None:
    drawn, model, state = list[float](), vit().train(), torch.get_rng_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def score(network: nn.Module) -> float:
        drawn.append(float(torch.rand(())))
        assert sum(float(value.abs().sum()) for value in network.state_dict().values()) > 0
        for tensor in network.state_dict().values():
            tensor.zero_()
        network.half()
        return drawn[-1]

    planned(model, score=of_a_module(score), store=store)
    assert len(drawn) == 2
    assert drawn[0] == drawn[1]
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.slow
def test_a_killed_search_goes_on_with_its_scores(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts, calls = Interrupts(monkeypatch), list[float]()

    def score(network: nn.Module) -> float:
        calls.append(float(network(INPUTS).sum()))
        return calls[-1]

    named = of_a_module(score)
    copies = [shutil.copytree(store, store.parent / f"killed_{done}") for done in (1, 2)]
    whole = planned(score=named, store=store)
    assert interrupts.computed == 3, "a rival's plan and two scores"
    assert len(calls) == 2
    for done, folder in enumerate(copies, start=1):
        calls.clear()
        interrupts.begin(done)
        with pytest.raises(KeyboardInterrupt):
            planned(score=named, store=folder)
        interrupts.begin()
        again = planned(score=named, store=folder)
        assert again == whole
        assert same(again, whole)
        assert interrupts.computed == 3 - done
        assert len(calls) == 2, "each network is scored once"


@pytest.mark.slow
def test_two_ranks_score_each_plan_once(store: Path) -> None:
    (store.parent / "scored").mkdir()
    shutil.copytree(store, store.parent / "scored" / "store")
    ranks = two_ranks(store.parent, "scored", script="fits/planning_ranks.py")["scored"]
    assert [rank["calls"] for rank in ranks] == [1, 1]
    assert ranks[0]["plan"] == ranks[1]["plan"]
    assert ranks[0]["scores"][ranks[0]["picked"]] == max(ranks[0]["scores"])


def most_blocks(network: nn.Module) -> int:
    return sum(isinstance(module, Residual) for module in network.modules())


def fewest_blocks(network: nn.Module) -> int:
    return -most_blocks(network)


@pytest.mark.slow
def test_depth_alone_is_scored_where_compared_after_reconstruction(tmp_path: Path) -> None:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), *(Residual(8) for _ in range(4)), nn.AdaptiveAvgPool2d(1)]
    model, batches = nn.Sequential(*body, nn.Flatten(), nn.Linear(8, 4)).eval(), images(6)
    for score in (most_blocks, fewest_blocks):
        plan = plan_pruning(model, Budget(macs=0.3), batches=batches, score=score, store=tmp_path)
        found = [one for one in splits(plan) if not one.refused]
        assert 2 <= len(found) <= 4
        assert found[1].depth == 1
        assert score(pruned_by(plan, model)) == max(one.score for one in found if one.score is not None)


def returning(value: object) -> Callable[[nn.Module], Any]:
    return lambda network: value


@pytest.mark.parametrize(
    ("found", "error", "message"),
    [
        (None, TypeError, "to return a number, larger is better, but got None. Return the metric as a float."),
        ({"map": 0.5}, TypeError, "to return a number, larger is better, but got {'map': 0.5}. Return the metric"),
        (math.nan, ValueError, "to return a finite number, but got nan. Return the worst value"),
        (torch.tensor(-math.inf), ValueError, "to return a finite number, but got -inf."),
        (torch.ones(2, 2), ValueError, "to return a single number, but got values of shape (2, 2). Return their mean"),
    ],
)
def test_a_score_is_a_finite_number(found: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        score_of(nn.Linear(2, 2), returning(found), 0)
    assert f"Expected score(network) {message}" in str(raised.value)


@pytest.mark.parametrize("found", [2, 2.0, torch.tensor([2.0]), torch.tensor(2, dtype=torch.int64)])
def test_any_number_is_a_score(found: object) -> None:
    assert score_of(nn.Linear(2, 2), returning(found), 0) == 2.0


@pytest.mark.slow
def test_an_error_of_the_score_is_raised_with_a_note(store: Path) -> None:
    with pytest.raises(KeyError, match=r"boxes") as raised:
        planned(score=of_a_module(lambda network: {}["boxes"]), store=store)
    (note,) = raised.value.__notes__
    assert note == "This was in score(network), for a pruned network. Try score(model) on the dense network first."


@pytest.mark.parametrize(
    ("score", "said"), [("map", "str"), (nn.Linear, "the class Linear. Pass Linear(...)"), (3, "int")]
)
def test_a_score_is_a_function(score: Any, said: str) -> None:
    for make in (planned, Prune):
        with pytest.raises(TypeError) as raised:
            make(budget=BUDGET, score=score) if make is Prune else make(score=score)
        assert str(raised.value) == f"Expected argument score to be a callable (network) -> float, but got {said}."


def test_score_and_evaluate_are_refused_together() -> None:
    with pytest.raises(ValueError, match="Expected evaluate or score, but got both: evaluate compares depth and width"):
        planned(score=returning(1.0), evaluate=lambda trials: [1.0] * len(trials))


def test_old_checkpoints_know_no_score() -> None:
    score: Score = score_of  # type: ignore[assignment]
    assert "score" not in JointPlanning().deciding
    assert JointPlanning(score=score).signature["score"] == "score_of"


@pytest.mark.parametrize("score", [lambda network: 1.0, Watched(1.0), max])
def test_a_store_keeps_scores_of_functions_with_a_name_of_their_own(score: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="Expected argument score to be a function of a module with store=..., but got"
    ):
        planned(score=score, store=tmp_path)
