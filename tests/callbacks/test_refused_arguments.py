"""Arguments that callbacks refuse when they are made, by message."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from cases.fits.routed_lora import Language
from cases.fits.routed_lora import shared as shared_with
from torch.utils.data import TensorDataset

from prunerecover import Budget, DepthPrune, DistillRecover, Plan, Prune, Quality, RecoverySchedule, WidthPrune
from prunerecover.callbacks import PruneReport, PruneSchedule
from prunerecover.callbacks.distillation.sample_keys import sample_keys
from prunerecover.callbacks.trials.runner import TrialSettings
from prunerecover.model.batches import ModelInputs

Call = Callable[..., Any]
HALF = Budget(macs=0.5)
BLOCK = Budget(remove={"block": 1})
ACC = Quality("val_acc", drop=0.01)
quality = partial(Quality, **{"monitor": "val_acc", "drop": 0.01})
attention = partial(DepthPrune, remove={"attention": 1})
planned = partial(DepthPrune, plan=Plan())
halved = partial(WidthPrune, HALF)


def shared(**arguments: Any) -> Any:
    return shared_with(Language().net, **arguments)


ONE = "Expected exactly one of budget"
ALONE = "beside a plan, which says already what goes"
VALUES: list[tuple[Call, dict[str, Any], str]] = [
    # One of budget, plan and the others, and nothing of planning beside a plan.
    (DepthPrune, {}, rf"{ONE}, remove and plan, e.g. .*, but got none\.$"),
    (DepthPrune, {"remove": {"mlp": 1}, "plan": Plan()}, rf"{ONE}, .* and plan\. Set all but one to None"),
    (DepthPrune, {"budget": HALF, "plan": Plan()}, rf"{ONE}, .* and plan\. Set all but one to None"),
    (WidthPrune, {}, f"{ONE}, tolerance and plan"),
    (Prune, {}, rf"{ONE} and plan, e.g. Prune\(Budget\(latency=0.3\)\)"),
    (planned, {"importance": "taylor"}, f"Expected no importance {ALONE}"),
    (planned, {"ignore": "blocks.0.*"}, f"Expected no ignore {ALONE}"),
    (planned, {"loss": print}, f"Expected no loss {ALONE}"),
    (WidthPrune, {"plan": Plan(), "allocation": "nonsense"}, "Expected no allocation .* allocation='nonsense'"),
    (WidthPrune, {"plan": Plan(), "kinds": "head", "ignore": "a.*"}, r"kinds, ignore .* kinds=\('head',\), ignore="),
    (Prune, {"plan": Plan(), "kinds": "head"}, f"Expected no kinds {ALONE}"),
    # What each planning may remove.
    (DepthPrune, {"remove": {"attn": 1}}, "Expected kinds among .*attention.*, but got 'attn'"),
    (DepthPrune, {"budget": Budget(ratio={"channel": 0.2})}, "got 'channel'. Channels, heads, .* with WidthPrune"),
    (WidthPrune, {"budget": BLOCK}, "blocks, attentions, MLPs and activations go with DepthPrune"),
    (WidthPrune, {"budget": Budget(remove={"head": 1})}, "WidthPrune's budget in a share of cost or in experts"),
    (WidthPrune, {"tolerance": 0.2}, "Expected a tolerance with allocation='fair_pruner' only"),
    (Prune, {"budget": BLOCK}, "Expected a share .* with plan_depth or DepthPrune, .*"),
    (Prune, {"budget": HALF, "kinds": ("heads",)}, r"Expected kinds among block, .* but got 'heads'"),
    (attention, {"importance": "l1"}, "Expected argument importance to be one of .*magnitude.*, but got 'l1'"),
    (attention, {"replace": "none"}, "argument replace to be one of calibrated, zero, identity, but got 'none'"),
    (attention, {"search": "random"}, "argument search to be one of program, one_shot, .* but got 'random'"),
    (attention, {"merge": "always"}, "merge to be 'copy', 'at_surgery' or 'never', but got 'always'"),
    (attention, {"calibration": 0}, "Expected argument calibration to be at least 1, but got 0"),
    # Schedules.
    (attention, {"schedule": {"start": -1}}, "Expected argument start to be at least 0, but got -1"),
    (attention, {"schedule": -1}, "Expected argument start to be at least 0, but got -1"),
    (attention, {"schedule": {"every": 0, "step": 1}}, "Expected argument every to be at least 1, but got 0"),
    (attention, {"schedule": {"every": 1, "step": 0}}, "Expected argument step to be at least 1, but got 0"),
    (attention, {"schedule": {"step": 1}}, "Expected argument every with step"),
    (halved, {"schedule": {"times": 2}}, "Expected argument every with times"),
    (attention, {"schedule": {"alternate": True}}, "but got 'alternate'. Kinds no longer take turns: give each"),
    (attention, {"schedule": {"begin": 2}}, "schedule to have start, every, step, times, by, but got 'begin'"),
    (attention, {"schedule": {"every": 1, "times": 2}}, "times with a budget in a share of cost .*, but got units"),
    (halved, {"schedule": {"every": 1}}, "Expected argument times, and no step, in a schedule with every=1"),
    (halved, {"schedule": {"every": 1, "times": 2, "step": 1}}, "Expected argument times, and no step, in a schedule"),
    (planned, {"schedule": {"every": 1}}, "budget with schedule every=1, .* a plan or a tolerance is applied at once"),
    (PruneSchedule, {"by": "batch"}, "argument by of a schedule to be 'epoch' or 'step', but got 'batch'"),
    # Qualities, and the steps until one falls.
    (quality, {"drop": -0.1}, "Expected argument drop to be at least 0, but got -0.1. It is a difference"),
    (quality, {"mode": "higher"}, "Expected argument mode to be 'max' or 'min', but got 'higher'"),
    (quality, {"baseline": float("inf")}, "Expected argument baseline to be a finite number, but got inf"),
    (quality, {"most": 1.0}, r"argument most to be a share between 0 and 1 \(exclusive\), but got 1.0"),
    (partial(Prune, ACC), {"step": 0.95}, "Expected argument step to be a share above 0 and at most 0.9"),
    (partial(Prune, ACC), {"step": Budget(macs=0.1, latency=0.0)}, "step's latency to be a share above 0"),
    (partial(Prune, ACC), {"step": Budget(macs="0.8G")}, "units that goes each time, but got {'macs': '0.8G'}"),
    (partial(Prune, ACC), {"step": Budget(ratio={"block": 0.1})}, "units that goes each time, but got {'ratio'"),
    (partial(Prune, ACC), {"step": Budget(remove={"block": 0})}, "Expected argument step to remove at least one unit"),
    (partial(Prune, ACC), {"step": BLOCK}, "units of different kinds have no number in common"),
    (partial(WidthPrune, ACC), {"step": BLOCK}, "Expected WidthPrune's budget in a share of cost"),
    (partial(DepthPrune, ACC), {"step": Budget(remove={"expert": 1})}, "Expected kinds among"),
    (partial(Prune, HALF), {"step": 0.1}, r"Expected argument step with a quality to keep.*but got it with Budget"),
    (partial(DepthPrune, ACC), {"schedule": {"every": 1, "times": 2}}, "schedule of start and every with Quality"),
    (partial(DepthPrune, ACC), {"schedule": {"by": "step"}}, "schedule of start and every with Quality, but got by="),
    # Recoveries, and trials.
    (DistillRecover, {"teacher_weight": 1.5}, "teacher_weight to be between 0 and 1, but got 1.5"),
    (DistillRecover, {"temperature": 0}, "Expected argument temperature to be positive, but got 0"),
    (DistillRecover, {"cache": True, "features": True}, "cache=True for a teacher's answers alone, but got features="),
    (shared, {"rank": 0}, "Expected argument rank of RoutedLoRARecover in its range, but got 0"),
    (shared, {"teacher_weight": 1.5}, "teacher_weight to be between 0 and 1, but got 1.5"),
    (RecoverySchedule, {"lr": 0.1}, "Expected argument lr to be 'auto' or None, but got 0.1. The rate"),
    (TrialSettings, {"epochs": 0}, "trials of at least 1 epoch, but got 0"),
    *(
        (TrialSettings, {"trainer": {name: 1, "limit_train_batches": 3}}, f"no {name} among the trials' Trainer argum")
        for name in ("max_epochs", "callbacks", "logger")
    ),
]
TYPES: list[tuple[Call, dict[str, Any], str]] = [
    (DepthPrune, {"plan": 3}, "Expected argument plan to be a Plan or the path of one, but got int"),
    (DepthPrune, {"remov": {"attention": 1}}, r"^DepthPrune.__init__\(\) got an unexpected keyword argument 'remov'$"),
    (WidthPrune, {"plan": "plan.json", "search": "joint"}, "WidthPrune.* got an unexpected keyword argument 'search'"),
    (quality, {"drop": "1%"}, "Expected argument drop of Quality to be a number, but got '1%'"),
    (quality, {"monitor": ""}, "Expected argument monitor to be the name of a metric, but got ''"),
    (partial(Prune, ACC), {"step": "0.8G"}, "step to be a share of the MACs or a Budget, but got '0.8G'"),
    (DistillRecover, {"teacher_weight": True}, "Expected argument teacher_weight to be a number, but got True"),
    (shared, {"temperature": "2"}, "Expected argument temperature to be a number, but got '2'"),
    (shared, {"sets": [1]}, r"Expected argument sets to be a PlanSet or the path of its file, but got \[1\]"),
    *(
        (PruneReport, {"metrics": metrics}, "metrics to be the name of a logged metric or a list of names, but got")
        for metrics in (5, [5], {"val_acc": 1}, b"val_acc")
    ),
    (sample_keys, {"inputs": ModelInputs((torch.zeros(4), TensorDataset(torch.zeros(4))))}, "but got TensorDataset"),
]


@pytest.mark.parametrize(("make", "arguments", "message"), VALUES)
def test_a_value_that_does_not_fit_is_refused(make: Call, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**arguments)


@pytest.mark.parametrize(("make", "arguments", "message"), TYPES)
def test_another_type_is_refused(make: Call, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make(**arguments)
