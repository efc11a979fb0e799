"""Search for the best split with accuracies by a formula, without training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cases.boundary import BATCHES, QUICK, Told, Truth, attention_hurts, hill, split_of
from cases.engine import batches_of, build, equal, unchanged
from cases.models.tiny import tiny_timm

from prunerecover.boundary.designs import Split, axes_and_staircase, feasible_splits
from prunerecover.boundary.feasible import TYPES
from prunerecover.boundary.plan_boundary import PUBLISHED, plan_boundary
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.planning.plan_depth import plan_depth


@pytest.mark.parametrize(
    ("truth", "n_remove"),
    [
        (lambda m, n: 80 - 0.5 * m - 2 * n, 6),
        (lambda m, n: 80 - 0.9 * m**2 - 0.3 * n**2 - 0.1 * m * n, 9),
        pytest.param(lambda m, n: 75 - 0.5 * 1.7**m - 0.2 * 2.0**n, 9, marks=pytest.mark.slow),
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


@pytest.mark.parametrize(
    ("design", "expected"),
    [
        ("spread", feasible_splits(4, n_remove=3)),
        ("axes_and_staircase", axes_and_staircase(4, 3)),
        ([(0, 3), (2, 1), (3, 0)], [(0, 3), (2, 1), (3, 0)]),
    ],
)
def test_designs_run_their_splits_all_at_once(design: str | list[Split], expected: Sequence[Split]) -> None:
    told, how = Told(attention_hurts), {"design": design, "surface": "gaussian_process", **QUICK}
    plan = plan_boundary(build("timm"), n_remove=3, evaluate=told, runs=5, **how)
    assert told.splits == [list(expected)]
    assert split_of(plan) == (0, 3)
    assert plan.made_by.arguments["design"] == design


@pytest.mark.slow
def test_trials_carry_the_plans_of_plan_depth() -> None:
    """The trials include replacements with fitted values."""
    told = Told(hill)
    model = build("timm")
    picked = plan_boundary(model, n_remove=3, batches=BATCHES, evaluate=told)
    for plan in (picked, *(trial.plan for trials in told.asked for trial in trials)):
        removed = dict(zip(TYPES, split_of(plan), strict=True))
        alone = plan_depth(model, remove=removed, batches=BATCHES)
        assert plan.edits == alone.edits
        assert equal(dict(plan.tensors), dict(alone.tensors))
        assert plan.result == alone.result
        assert alone.evidence["importance"].items() <= plan.evidence["importance"].items()
        assert plan.evidence["divergence"] == alone.evidence["divergence"]


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
    def rising(m: int, n: int) -> float:
        return 70 - 3 * (m + n) + (m + n) ** 2

    near = [(m, n) for m in range(3) for n in range(3)]
    with pytest.raises(ValueError, match=r"no split above the dense model's 70.00%, but got 88.00% predicted"):
        plan_boundary(build("timm"), n_remove=6, evaluate=Told(rising), design=near, **QUICK)


@pytest.mark.slow
def test_searching_leaves_the_model_bit_identical() -> None:
    model, how = build("timm_all").train(), {"evaluate": Told(hill), "search": "greedy", "runs": 3}
    with unchanged(model):
        assert plan_boundary(model, Budget(macs=0.3), batches=batches_of("timm_all"), **how).edits


# Errors.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"design": "diagonal"}, "design to be one of line, spread, axes_and_staircase, but got 'diagonal'"),
        ({"runs": 2}, "runs to be at least 3, for a curve, but got 2"),
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
        ({"design": [(5, 0)]}, r"within the 4 and 4 units of the model, but got \(5, 0\)"),
        ({"design": []}, "at least one run, but got none"),
        ({"surface": "polynomial"}, "runs that determine a polynomial"),
        (
            {"design": [(0, 0), (1, 0), (1, 1), (2, 1)], "surface": "parabola"},
            "at least three different splits along the line",
        ),
        ({"ignore": ["*.attn"]}, "attentions and activations to choose from, but got 0 and 4 that may go. Ignore"),
        ({"importance": "size"}, "importance to be one of .*, but got 'size'"),
        (PUBLISHED, "Expected argument loss=.* for importance='gate_gradient', but got none"),
    ],
)
def test_wrong_arguments_are_found_before_anything_is_run(arguments: dict[str, Any], message: str) -> None:
    told, model = Told(hill), build("timm")
    with unchanged(model), pytest.raises(ValueError, match=message):
        plan_boundary(model, evaluate=told, **{"n_remove": 3, **QUICK, **arguments})
    assert not told.asked or arguments == {"design": []}


def test_gated_families_have_no_activation_to_choose() -> None:
    with pytest.raises(ValueError, match="Llama to have removable activations, but its MLP is gated: .* Use 'att"):
        plan_boundary(build("llama"), n_remove=3, batches=batches_of("llama"), evaluate=Told(hill))


def test_as_many_accuracies_as_trials() -> None:
    with pytest.raises(ValueError, match="one accuracy per trial, 3 in all, but got 1"):
        plan_boundary(build("timm"), n_remove=3, evaluate=lambda trials: [70.0], **QUICK)
