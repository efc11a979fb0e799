"""The search for the best split, with made-up accuracies: nothing is trained here."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_cases import batch_of, batches_of, build, equal, unchanged
from tiny_models import tiny_timm
from torch import Tensor, nn
from torch.nn import functional as F

import prunerecover.cost as cost_module
from prunerecover.batches import as_inputs
from prunerecover.boundary import PUBLISHED, BoundarySearch, Trial, plan_boundary
from prunerecover.boundary_budget import TYPES, CostLine, feasible_within, layers_of
from prunerecover.budget import Budget
from prunerecover.depth import DepthPlanner, plan_depth
from prunerecover.designs import Split, affordable_splits, feasible_splits
from prunerecover.macs import count_macs
from prunerecover.merge import merge
from prunerecover.plan import Plan
from prunerecover.statistics import Interval
from prunerecover.surgery import apply_plan

BATCHES = batches_of("timm", count=2)
LAYERS = 4
QUICK = {"batches": BATCHES, "importance": "magnitude", "replace": "zero"}
Truth = Callable[[int, int], float]


def split_of(plan: Plan) -> Split:
    attention, activation = (len(plan.removed.get(kind, ())) for kind in TYPES)
    return attention, activation


class Told:
    """Accuracies by a formula in (attentions, activations removed); remembers what was asked for at once."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.asked: list[list[Trial]] = []

    def __call__(self, trials: Sequence[Trial]) -> list[float]:
        self.asked.append(list(trials))
        return [self.truth(*split_of(trial.plan)) for trial in trials]

    @property
    def splits(self) -> list[list[Split]]:
        return [[split_of(trial.plan) for trial in trials] for trials in self.asked]

    @property
    def runs(self) -> list[tuple[Split, int]]:
        return [(split_of(trial.plan), trial.seed) for trials in self.asked for trial in trials]


def attention_hurts(m: int, n: int) -> float:
    return 80 - 2 * m - 0.5 * n


def hill(m: int, n: int) -> float:
    """Highest at two attentions for four units in all, falling faster with each unit of a type."""
    return 80 - 0.6 * m**2 - 0.6 * n**2


def cross_entropy(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch), torch.zeros(len(batch), dtype=torch.long))


@pytest.mark.parametrize(
    ("truth", "n_remove"),
    [
        pytest.param(attention_hurts, 4, marks=pytest.mark.slow),
        (lambda m, n: 80 - 0.5 * m - 2 * n, 6),
        (lambda m, n: 80 - 0.3 * m**2 - 0.6 * n**2, 6),
        (lambda m, n: 80 - 0.9 * m**2 - 0.3 * n**2 - 0.1 * m * n, 9),
        (lambda m, n: 75 - 0.5 * 1.7**m - 0.2 * 2.0**n, 9),
    ],
)
def test_five_runs_find_what_all_runs_would(truth: Truth, n_remove: int) -> None:
    told = Told(truth)
    plan = plan_boundary(tiny_timm(depth=8), n_remove=n_remove, evaluate=told, **QUICK)
    assert split_of(plan) == max(feasible_splits(8, n_remove=n_remove), key=lambda split: truth(*split))
    assert len(told.runs) == 5


def test_three_runs_go_out_together_and_further_ones_alone() -> None:
    told = Told(hill)
    plan_boundary(build("timm"), n_remove=4, evaluate=told, **QUICK)
    assert [len(trials) for trials in told.asked] == [3, 1, 1]
    assert told.splits[0] == [(0, 4), (2, 2), (4, 0)]


@pytest.mark.parametrize("first", [0, 5])
def test_each_repetition_of_a_split_takes_the_next_seed(first: int) -> None:
    told = Told(attention_hurts)
    plan_boundary(build("timm"), n_remove=3, runs=7, seed=first, evaluate=told, **QUICK)  # four splits, seven runs
    for split in {split for split, _ in told.runs}:
        seeds = [seed for other, seed in told.runs if other == split]
        assert seeds == list(range(first, first + len(seeds)))
    assert max(seed for _, seed in told.runs) > first


def test_repetitions_that_go_out_together_differ_in_their_seeds() -> None:
    told = Told(hill)
    design = [(0, 4), (2, 2), (2, 2), (4, 0), (2, 2)]
    plan_boundary(build("timm"), n_remove=4, design=design, evaluate=told, **QUICK)
    assert told.runs == [((0, 4), 0), ((2, 2), 0), ((2, 2), 1), ((4, 0), 0), ((2, 2), 2)]


@pytest.mark.parametrize(
    ("design", "expected"),
    [
        ("spread", [(0, 3), (1, 2), (2, 1), (3, 0)]),
        ("one_type_at_a_time", [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (0, 2), (0, 3)]),
        ("interleaved", [(0, 0), (1, 0), (1, 1), (2, 1)]),
        (
            "axes_and_staircase",
            [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3)],
        ),
        ([(0, 3), (2, 1), (3, 0)], [(0, 3), (2, 1), (3, 0)]),
    ],
)
def test_designs_run_their_splits_all_at_once(design: str | list[Split], expected: list[Split]) -> None:
    told = Told(attention_hurts)
    plan = plan_boundary(
        build("timm"), n_remove=3, design=design, surface="gaussian_process", evaluate=told, runs=5, **QUICK
    )
    assert told.splits == [expected]
    assert split_of(plan) == (0, 3)
    assert plan.made_by.arguments["design"] == design


@pytest.mark.slow
def test_trials_carry_the_plans_of_plan_depth() -> None:
    """With what is left behind, and what it was fitted to."""
    told = Told(hill)
    model = build("timm")
    picked = plan_boundary(model, n_remove=3, batches=BATCHES, evaluate=told)
    for plan in (picked, *(trial.plan for trials in told.asked for trial in trials)):
        removed = dict(zip(TYPES, split_of(plan), strict=True))
        alone = plan_depth(model, remove=removed, batches=BATCHES)
        assert plan.edits == alone.edits
        assert equal(dict(plan.tensors), dict(alone.tensors))
        assert plan.result == alone.result


def test_the_published_arguments_find_the_best_split_of_a_quadratic_surface() -> None:
    told = Told(lambda m, n: 80 - 0.9 * m**2 - 0.3 * n**2)
    plan = plan_boundary(build("timm"), n_remove=4, batches=BATCHES, evaluate=told, loss=cross_entropy, **PUBLISHED)
    assert split_of(plan) == (1, 3)
    assert plan.evidence["predicted"]["accuracy"] == pytest.approx(80 - 0.9 - 0.3 * 9)
    assert plan.made_by.method == "boundary/gate_gradient"
    assert plan.made_by.arguments["search"] == "one_shot"
    assert plan.made_by.arguments["surface"] == "polynomial"
    (trials,) = told.asked
    assert trials[0].plan == Plan()
    assert len(trials) == 1 + 2 * LAYERS + 5
    scores = plan.evidence["importance"]
    for kind, suffix in (("attention", ".attn"), ("activation", ".act")):
        ranked = sorted((name for name in scores if name.endswith(suffix)), key=scores.__getitem__)
        assert set(plan.removed[kind]) == set(ranked[: len(plan.removed[kind])])
    assert {edit.leaves for edit in plan.edits} == {"identity"}


def test_published_gate_gradients_need_a_loss() -> None:
    with pytest.raises(ValueError, match="Expected argument loss=.* for importance='gate_gradient', but got none"):
        plan_boundary(build("timm"), n_remove=3, batches=BATCHES, evaluate=Told(hill), **PUBLISHED)


def test_evidence_tells_the_runs_and_what_the_pick_may_cost(tmp_path: Path) -> None:
    told = Told(hill)
    plan = plan_boundary(build("timm"), n_remove=4, evaluate=told, noise=0.25, seed=3, **QUICK)
    runs = [split for split, _ in told.runs]
    assert plan.evidence["trials"] == [{"attention": m, "activation": n, "accuracy": hill(m, n)} for m, n in runs]
    predicted = plan.evidence["predicted"]
    assert predicted["accuracy"] == pytest.approx(hill(2, 2), abs=0.25)
    assert 0 == predicted["regret"]["low"] <= predicted["regret"]["value"] < 0.25
    assert plan.made_by.method == "boundary/magnitude"
    assert plan.made_by.seed == 3
    arguments = {"design": "line", "surface": None, "noise": 0.25, "search": "one_shot", "replace": "zero"}
    assert arguments.items() <= plan.made_by.arguments.items()
    assert plan.made_by.arguments["budget"] == {"remove": {"attention": 2, "activation": 2}}
    assert plan.evidence["importance"]
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").evidence == plan.evidence


def test_predictions_above_dense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no split above the dense model's 70.00%, but got 7\d.\d\d% predicted"):
        plan_boundary(build("timm"), n_remove=4, evaluate=Told(hill), dense=70.0, **QUICK)


@pytest.mark.parametrize("search", ["greedy", "one_shot"])
def test_searching_leaves_the_model_bit_identical(search: str) -> None:
    model = build("timm_all").train()
    with unchanged(model):
        plan = plan_boundary(
            model, Budget(macs=0.3), batches=batches_of("timm_all"), evaluate=Told(hill), search=search, runs=3
        )
    assert plan.edits


def test_the_model_is_bit_identical_after_a_failed_evaluation() -> None:
    def failing(trials: Sequence[Trial]) -> list[float]:
        raise KeyError("of the user")

    model = build("timm").train()
    with unchanged(model), pytest.raises(KeyError, match="of the user"):
        plan_boundary(model, n_remove=3, batches=BATCHES, evaluate=failing)


# Budgets.


def test_units_kept_and_removed_are_the_same_budget() -> None:
    plans = [plan_boundary(build("timm"), **b, evaluate=Told(hill), **QUICK) for b in ({"n_remove": 5}, {"n_keep": 3})]
    assert plans[0] == plans[1]
    assert sum(split_of(plans[0])) == 5


@pytest.mark.parametrize(("n_remove", "expected"), [(0, (0, 0)), (1, (0, 1)), (7, (3, 4)), (8, (4, 4))])
def test_budgets_with_fewer_than_three_splits_are_planned_too(n_remove: int, expected: Split) -> None:
    """Each split is run once; no curve is asked for."""
    told = Told(attention_hurts)
    plan = plan_boundary(build("timm"), n_remove=n_remove, evaluate=told, **QUICK)
    assert split_of(plan) == expected
    assert told.splits == [list(feasible_splits(LAYERS, n_remove=n_remove))]


def macs_removed(model: nn.Module, plan: Plan) -> float:
    """By the merged model, counted."""
    pruned = copy.deepcopy(model)
    apply_plan(pruned, plan)
    merge(pruned)
    one = as_inputs(batch_of("timm")).select(torch.tensor([0]))
    return 1 - count_macs(pruned, one) / count_macs(model, one)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8])
def test_every_split_of_a_share_of_macs_meets_it_and_no_unit_is_spare(share: float) -> None:
    model = build("timm")
    planner = DepthPlanner(model, TYPES, **QUICK)
    splits = feasible_within(planner, Budget(macs=share)).splits
    search = BoundarySearch(planner, splits, Told(hill))
    assert splits
    for attention, activation in splits:
        assert macs_removed(model, search.plan_of((attention, activation))) >= share - 1e-9
        if activation:
            assert macs_removed(model, search.plan_of((attention, activation - 1))) < share


@pytest.mark.parametrize("cost", ["macs", "params"])
def test_the_pick_of_a_share_is_the_best_split_that_meets_it(cost: str) -> None:
    model, told = build("timm"), Told(attention_hurts)
    plan = plan_boundary(model, Budget(**{cost: 0.3}), evaluate=told, **QUICK)
    splits = feasible_within(DepthPlanner(model, TYPES, **QUICK), Budget(**{cost: 0.3})).splits
    assert split_of(plan) == max(splits, key=lambda split: attention_hurts(*split))
    assert {split for split, _ in told.runs} <= set(splits)


def activation_hurts(attention: int, activation: int) -> float:
    return 80.0 - attention - 6 * activation


def test_a_share_is_met_with_what_units_leave() -> None:
    """Maps that attentions leave cost something: a split further on is planned, without more runs."""
    model, told = build("timm"), Told(activation_hurts)
    planner = DepthPlanner(model, TYPES, batches=BATCHES)
    share = 4 * planner.share_of_one("attention", "macs")
    by_addition = feasible_within(planner, Budget(macs=share)).splits
    picked = BoundarySearch(planner, by_addition, told).run()[1]
    assert macs_removed(model, picked) < share
    runs = list(told.runs)
    search = BoundarySearch(planner, by_addition, told, more=feasible_within(planner, Budget(macs=share)).more)
    fitted, plan = search.run()
    assert macs_removed(model, plan) >= share - 1e-9
    assert told.runs == runs + runs
    assert split_of(plan) == (4, 1)
    assert fitted.best(splits=by_addition).split == (4, 0)
    assert plan.edits == plan_boundary(model, Budget(macs=share), batches=BATCHES, evaluate=told).edits


@pytest.mark.parametrize("surface", [None, "parabola"])
def test_of_further_splits_the_nearest_is_planned_even_off_the_line_of_the_runs(surface: str | None) -> None:
    def more(plan: Plan) -> tuple[Split, ...]:
        return () if sum(split_of(plan)) == 6 else ((2, 4), (3, 3), (4, 2))

    splits = feasible_splits(4, n_remove=3)
    planner = DepthPlanner(build("timm"), TYPES, **QUICK)
    search = BoundarySearch(planner, splits, Told(attention_hurts), surface=surface, more=more)
    assert split_of(search.run()[1]) == (2, 4)


def test_splits_beyond_a_share_save_what_a_plan_falls_short() -> None:
    plan = plan_boundary(build("timm"), n_remove=3, evaluate=Told(hill), **QUICK)
    added = sum(n * saved for n, saved in zip(split_of(plan), (0.05, 0.1), strict=True))
    line = CostLine((4, 4), 0.05, 0.1, 0.2, removed=lambda plan: 0.18, slack=0.01)
    assert line.more(plan) == affordable_splits(4, 0.05, 0.1, added + 0.02)
    assert replace(line, slack=0.02).more(plan) == ()
    assert replace(line, removed=lambda plan: 0.2).more(plan) == ()


def test_a_share_that_removing_everything_does_not_meet_is_refused() -> None:
    plan = plan_boundary(build("timm"), n_remove=8, evaluate=Told(hill), **QUICK)
    line = CostLine((4, 4), 0.05, 0.1, 0.6, removed=lambda plan: 0.55)
    with pytest.raises(
        ValueError, match=r"a budget that removing everything meets, but got 0\.6 and 0\.550 of the cost"
    ):
        line.more(plan)


def test_a_share_of_latency_is_measured_per_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that counts parameters instead of seconds: the splits are those of a share of parameters."""

    class Ratio:
        def __init__(self, value: float) -> None:
            self.ratio = Interval(value, value, value, 0.95)

    def clock(dense: nn.Module, pruned: nn.Module, example: Any, **_: Any) -> Ratio:
        assert example.n_samples == as_inputs(BATCHES[0]).n_samples > 1
        counts = [sum(p.numel() for p in m.parameters()) for m in (dense, pruned)]
        return Ratio(counts[1] / counts[0])

    monkeypatch.setattr(cost_module, "latency_ratio", clock)
    model, told = build("timm"), Told(hill)
    planner = DepthPlanner(model, TYPES, **QUICK)
    plan = plan_boundary(model, Budget(latency=0.3), evaluate=told, **QUICK)
    splits = feasible_within(planner, Budget(params=0.3)).splits
    assert feasible_within(planner, Budget(latency=0.3)).splits == splits
    assert {split_of(plan), *(split for split, _ in told.runs)} <= set(splits)


def test_ignored_units_are_not_counted() -> None:
    planner = DepthPlanner(build("timm"), TYPES, ignore=["blocks.0.*", "blocks.3.attn"], **QUICK)
    assert layers_of(planner) == (2, 3)
    assert feasible_within(planner, n_keep=1).splits == ((1, 3), (2, 2))


# Several budgets share a planner.


@pytest.mark.slow
@pytest.mark.parametrize("search", ["greedy", "one_shot"])
def test_plans_of_one_planner_equal_plans_made_alone_in_any_order(search: str) -> None:
    model = build("timm")
    removals = [{"attention": 2, "activation": 1}, {"activation": 3}, {"attention": 3, "activation": 3}]
    alone = [plan_depth(model, remove=removal, batches=BATCHES, search=search) for removal in removals]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        planner = DepthPlanner(model, TYPES, batches=BATCHES, search=search)
        for i in order:
            plan = planner.plan(Budget(remove=removals[i]))
            assert plan.edits == alone[i].edits
            assert plan.result == alone[i].result
            assert equal(dict(plan.tensors), dict(alone[i].tensors))
            assert plan.evidence["divergence"] == alone[i].evidence["divergence"]
            assert alone[i].evidence["importance"].items() <= plan.evidence["importance"].items()


def test_a_planner_does_not_score_the_same_units_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = DepthPlanner(build("timm"), TYPES, batches=BATCHES)
    calls = []
    own = planner.calibrator.score
    monkeypatch.setattr(planner.calibrator, "score", lambda units, gone: calls.append(len(units)) or own(units, gone))
    planner.plan(Budget(remove={"attention": 2, "activation": 2}))
    assert sum(calls) > 0
    calls.clear()
    planner.plan(Budget(remove={"attention": 2, "activation": 2}))
    assert not calls


# Errors.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"design": "diagonal"}, "design to be one of line, spread, axes_and_staircase, .*, but got 'diagonal'"),
        ({"runs": 2}, "runs to be at least 3, for a curve, but got 2"),
        ({"runs": 2, "design": "spread"}, "runs to be at least 3, for a curve, but got 2"),
        ({"n_keep": 5}, "exactly one of n_remove and n_keep, but got n_remove=3, n_keep=5"),
        ({"n_remove": None}, "exactly one of n_remove and n_keep, but got n_remove=None, n_keep=None"),
        ({"budget": Budget(macs=0.3)}, "exactly one of n_remove, n_keep and a share of macs, .* n_remove=3, .*'macs'"),
        (
            {"budget": Budget(remove={"attention": 1}), "n_remove": None},
            "Expected exactly one of .*, but got .*{'remove': {'attention': 1}}. Units per type are what is searched",
        ),
        ({"budget": Budget(ratio={"attention": 0.5}), "n_remove": None}, "'ratio'.* Units per type are what is"),
        ({"n_remove": 9}, "a budget between 0 and the 8 units of the model, but got n_remove=9"),
        ({"budget": Budget(macs=0.99), "n_remove": None}, "the share that goes when all units go, but got 0.99"),
        ({"surface": "cubic"}, "a surface among polynomial, gaussian_process, parabola or None, but got 'cubic'"),
        ({"noise": 0.0}, "a noise above 0 points, but got 0.0"),
        ({"design": [(5, 0)]}, "at most 4 units of kind 'attention' to remove, but got 5"),
        ({"design": []}, "at least one run, but got none"),
        ({"ignore": ["*.attn"]}, "attentions and activations to choose from, but got 0 and 4 that may go. Ignore"),
        ({"importance": "size"}, "importance to be one of .*, but got 'size'"),
    ],
)
def test_wrong_arguments_are_found_before_anything_is_run(arguments: dict[str, Any], message: str) -> None:
    told = Told(hill)
    model = build("timm")
    with unchanged(model), pytest.raises(ValueError, match=message):
        plan_boundary(model, evaluate=told, **{"n_remove": 3, **QUICK, **arguments})
    assert not told.asked or arguments == {"design": []}


def test_gated_families_have_no_activation_to_choose() -> None:
    with pytest.raises(ValueError, match="Llama to have removable activations, but its MLP is gated: .* Use 'att"):
        plan_boundary(build("llama"), n_remove=3, batches=batches_of("llama"), evaluate=Told(hill))


def test_as_many_accuracies_as_trials() -> None:
    with pytest.raises(ValueError, match="one accuracy per trial, 3 in all, but got 1"):
        plan_boundary(build("timm"), n_remove=3, evaluate=lambda trials: [70.0], **QUICK)


def test_a_surface_that_the_design_does_not_determine_is_refused() -> None:
    with pytest.raises(ValueError, match="at least three different splits along the line of one budget for a parabola"):
        plan_boundary(
            build("timm"), n_remove=3, design="one_type_at_a_time", surface="parabola", evaluate=Told(hill), **QUICK
        )
