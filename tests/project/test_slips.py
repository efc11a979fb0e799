"""Slips in calls of the public functions: each message names expectation and input, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.engine import batches_of, build, unchanged
from lightning.pytorch import LightningModule
from torch import nn

from prunerecover import (
    Applied,
    Budget,
    Plan,
    apply_plan,
    find_groups,
    find_units,
    load_pruned,
    measure,
    merge,
    plan_depth,
    plan_width,
    recalibrate_batchnorm,
    reconstruct,
    save_pruned,
    update_optimizer,
)
from prunerecover.callbacks import DepthPrune, DistillRecover, LoRARecover, PruneReport, WidthPrune
from prunerecover.recovery.lora import LoraSettings, inject_adapters, merge_adapters, plan_adapters

BATCHES = batches_of("timm")
ONE = {"attention": 1}
SGD = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = build("timm")


MODULE = Module()


def depth(model: Any, **arguments: Any) -> Plan:
    return plan_depth(model, **{"remove": ONE, "batches": BATCHES, "replace": "zero", **arguments})


def width(model: Any, budget: Any = Budget(macs=0.3), **arguments: Any) -> Plan:  # noqa: B008 (frozen)
    labelled = [(batch, torch.zeros(len(batch), dtype=torch.long)) for batch in BATCHES]
    return plan_width(model, budget, **{"batches": labelled, **arguments})


def prune(**arguments: Any) -> DepthPrune:
    return DepthPrune(remove=ONE, **arguments)


def narrow(**arguments: Any) -> WidthPrune:
    return WidthPrune(Budget(macs=0.3), **arguments)


NETWORK, ITERABLE, PLAN, PATH = "a network, an nn.Module", "batches to be an iterable", "a Plan", "a path"
FORWARD = "batches that VisionTransformer can be called with, but its forward pass raised"
SETTINGS = LoraSettings(rank=2, alpha=4.0)
TOLERANT: dict[str, Any] = {"allocation": "fair_pruner", "tolerance": "0.3"}
SLIPS: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "plan_depth without a model": (lambda _: depth(None), f"{NETWORK}, but got NoneType"),
    "plan_depth of a class": (lambda m: depth(type(m)), f"{NETWORK}, but got the class VisionTransformer"),
    "plan_depth of a LightningModule": (lambda _: depth(MODULE), "a network, but got the LightningModule Module"),
    "plan_depth with batches None": (lambda m: depth(m, batches=None), f"{ITERABLE} .* but got NoneType"),
    "plan_depth with a path of batches": (lambda m: depth(m, batches="data"), f"{ITERABLE} .* but got str"),
    "plan_depth with one batch": (lambda m: depth(m, batches=BATCHES[0]), f"{ITERABLE} of batches, but got one Tensor"),
    "plan_depth with batches of None": (lambda m: depth(m, batches=[None]), "each batch to be a tensor, .* got None"),
    "plan_depth with other dtypes": (lambda m: depth(m, batches=[b.double() for b in BATCHES]), FORWARD),
    "plan_depth with a share alone": (lambda m: plan_depth(m, 0.3, batches=BATCHES), "budget to be a Budget, but got"),
    "plan_depth with a number of units": (lambda m: depth(m, remove=3), "remove as numbers per kind, .* but got 3"),
    "plan_depth with counts in words": (lambda m: depth(m, remove={"attention": "1"}), "a whole number .* but got '1'"),
    "plan_depth with ignore=None": (lambda m: depth(m, ignore=None), "ignore to be shell patterns .* but got None"),
    "plan_depth with a seed in words": (lambda m: depth(m, seed="a"), "seed to be a whole number, but got 'a'"),
    "plan_depth with a named loss": (lambda m: depth(m, importance="taylor", loss="mse"), "loss to be a callable .* s"),
    "Budget in words": (lambda _: Budget(macs="0.3"), "macs to be a removed share, such as 0.3, .* but got '0.3'"),
    "Budget in percent": (lambda _: Budget(macs=30), "macs to be a removed share between 0 and 1 .*, but got 30"),
    "Budget with a percent sign": (lambda _: Budget(latency="30%"), "latency to be a removed share, .*, but got '30%'"),
    "Budget without a name": (lambda _: Budget("30%"), r"remove as numbers .* got '30%'. .* Budget\(macs=0.3\)"),
    "Budget of ratios in words": (lambda _: Budget(ratio={"mlp": "0.3"}), "ratio of 'mlp' .* share .*'0.3'"),
    "plan_width without a model": (lambda _: width(None), f"{NETWORK}, but got NoneType"),
    "plan_width with one batch": (lambda m: width(m, batches=BATCHES[0]), f"{ITERABLE} of batches, but got one Tensor"),
    "plan_width with a share alone": (lambda m: width(m, 0.3), "budget to be a Budget, but got float"),
    "plan_width with a named loss": (lambda m: width(m, loss="ce"), "loss to be a callable .* but got str"),
    "plan_width with a tolerance in words": (lambda m: width(m, None, **TOLERANT), "tolerance as a number, .* '0.3'"),
    "plan_width with a seed in words": (lambda m: width(m, seed=True), "seed to be a whole number, but got True"),
    "plan_width with a flag in words": (lambda m: width(m, equal_layers="no"), "equal_layers to be True or .* 'no'"),
    "DepthPrune with a share": (lambda _: DepthPrune("0.3"), "budget to be a Budget, but got str"),
    "DepthPrune with a mapping": (lambda _: DepthPrune({"block": 1}), r"budget to be a Budget, .* dict\. Use remove="),
    "DepthPrune with epochs in words": (lambda _: prune(schedule="3"), "schedule to be a PruneSchedule, .* got '3'"),
    "DepthPrune with a start in words": (lambda _: prune(schedule={"start": "3"}), "start to be a whole .* got '3'"),
    "DepthPrune with samples in words": (lambda _: prune(calibration="64"), "calibration to be a whole .* got '64'"),
    "DepthPrune with a seed in words": (lambda _: prune(seed="0"), "seed to be a whole number, but got '0'"),
    "WidthPrune with a share": (lambda _: WidthPrune("0.3"), r"budget to be a Budget, but got str. Use Budget\(macs"),
    "WidthPrune with a number to ignore": (lambda _: narrow(ignore=5), "ignore to be shell patterns of names, .* 5"),
    "WidthPrune with a seed in words": (lambda _: narrow(seed=False), "seed to be a whole number, but got False"),
    "WidthPrune with flags in words": (lambda _: narrow(equal_layers="no"), "equal_layers to be True or .* got 'no'"),
    "WidthPrune without reconstruction": (lambda _: narrow(reconstruct="no"), "reconstruct .* or 'blocks', .* 'no'"),
    "WidthPrune with a tolerance in words": (lambda _: WidthPrune(**TOLERANT), "tolerance as a number, .* '0.3'"),
    "LoRARecover with a rank in words": (lambda _: LoRARecover(rank="many"), "rank of LoRARecover .* got 'many'"),
    "LoRARecover with a start in words": (lambda _: LoRARecover(start="1"), "start to be a whole number, but got '1'"),
    "LoRARecover with a seed in words": (lambda _: LoRARecover(seed="1"), "seed to be a whole number, but got '1'"),
    "LoRARecover before any epoch": (lambda _: LoRARecover(start=-1), "start to be at least 0, but got -1"),
    "DistillRecover in words": (lambda _: DistillRecover(teacher_weight="0.5"), "teacher_weight to be a number, but"),
    "DistillRecover with flags in words": (lambda _: DistillRecover(features="no"), "features to be True or .* 'no'"),
    "PruneReport with samples in words": (lambda _: PruneReport(samples="8"), "samples to be a whole .* got '8'"),
    "PruneReport with pairs in words": (lambda _: PruneReport(pairs="8"), "pairs to be a whole number, but got '8'"),
    "PruneReport without samples": (lambda _: PruneReport(samples=0), "samples to be at least 1, but got 0"),
    "apply_plan without a plan": (lambda m: apply_plan(m, None), f"{PLAN}, but got NoneType"),
    "apply_plan the other way round": (lambda m: apply_plan(Plan(), m), f"{NETWORK}, but got Plan"),
    "apply_plan with refit=True": (lambda m: apply_plan(m, depth(m), refit=True), f"{ITERABLE} .* but got bool"),
    "merge without a model": (lambda _: merge(None), f"{NETWORK}, but got NoneType"),
    "save_pruned without a plan": (lambda m: save_pruned(m, None, "x"), f"{PLAN}, but got NoneType"),
    "save_pruned of what apply_plan returned": (lambda m: save_pruned(m, Applied(), "x"), f"{PLAN}, but got Applied"),
    "save_pruned the other way round": (lambda m: save_pruned(m, "x", Plan()), f"{PATH}, but got Plan"),
    "save_pruned without a path": (lambda m: save_pruned(m, Plan(), None), f"{PATH}, but got NoneType"),
    "load_pruned without a path": (lambda _: load_pruned(None), f"{PATH}, but got NoneType"),
    "load_pruned of a model": (lambda m: load_pruned(m), f"{PATH}, but got VisionTransformer"),
    "update_optimizer without one": (lambda _: update_optimizer(None, Applied()), "a torch optimizer, but got None"),
    "update_optimizer with a plan": (lambda _: update_optimizer(SGD, Plan()), "the result of apply_plan, but got Plan"),
    "measure without a model": (lambda _: measure(None, BATCHES[0]), f"{NETWORK}, but got NoneType"),
    "measure without a batch": (lambda m: measure(m, None), "each batch to be a tensor, .* but got NoneType"),
    "measure with repeats in words": (lambda m: measure(m, BATCHES[0], repeats="3"), "repeats to be a whole .* '3'"),
    "measure a negative number of times": (lambda m: measure(m, BATCHES[0], repeats=-3), "repeats to be .* got -3"),
    "reconstruct without a plan": (lambda m: reconstruct(m, m, None, BATCHES), f"{PLAN}, but got NoneType"),
    "reconstruct with one batch": (lambda m: reconstruct(m, m, Plan(), BATCHES[0]), f"{ITERABLE} .* one Tensor"),
    "recalibrate_batchnorm without a model": (lambda _: recalibrate_batchnorm(None, BATCHES), f"{NETWORK}, but got"),
    "recalibrate_batchnorm with one batch": (lambda m: recalibrate_batchnorm(m, BATCHES[0]), f"{ITERABLE} .* one Tens"),
    "plan_adapters without settings": (lambda m: plan_adapters(m, None), "LoraSettings, but got NoneType"),
    "inject_adapters of settings": (lambda m: inject_adapters(m, SETTINGS), "Adapters, but got LoraSettings"),
    "merge_adapters without any": (lambda m: merge_adapters(m, None), "Adapters, but got NoneType"),
    "find_units without a model": (lambda _: find_units(None), f"{NETWORK}, but got NoneType"),
    "find_groups without a model": (lambda _: find_groups(None, BATCHES[0]), f"{NETWORK}, but got NoneType"),
}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build("timm")


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_explained_and_changes_nothing(slip: str, model: nn.Module) -> None:
    call, message = SLIPS[slip]
    with unchanged(model), pytest.raises((TypeError, ValueError), match=rf"^Expected (argument )?{message}"):
        call(model)


def test_ranks_in_words_count_as_numbers() -> None:
    assert LoRARecover(rank="8", alpha=None).settings == LoRARecover(rank=8).settings
    assert LoRARecover(alpha="0.5").settings.alpha == 0.5
