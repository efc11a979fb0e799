"""Networks, methods and trainings of `best_rates.py`, from the benchmarks with a single rate.

Width, depth in order and joint budgets are pruned, calibrated and scored as in `width.py`, `graph_depth_resnet56.py`
and `natural_call.py`. Recovery is an epoch under the package's recommended schedule, for all methods alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.boundary.boundary_methods import isomorphic
from benchmarks.boundary.peers import least_ratio
from benchmarks.data import cifar, tiny_imagenet
from benchmarks.data.real import autocast, correct, deit_tiny
from benchmarks.depth import graph_depth_resnet56 as layers
from benchmarks.runner.plans import pruned, saved_plan
from benchmarks.runner.rows import CHECKPOINTS
from benchmarks.width import width_peers
from benchmarks.width.cifar_models import load
from benchmarks.width.width import EPOCH, OTHER, recalibrated
from prunerecover import Budget, Plan, plan_depth, plan_pruning, plan_width, recovery_schedule
from prunerecover.cost.macs import count_macs

DENSE = "dense"
PLANS = CHECKPOINTS / "best_rates"
HALF, THIRD = 0.5, 0.33  # of the MACs: of the ResNets in width, of DeiT-Tiny
HELD_OUT = {"cifar": 2000, "deit": 500}  # training images that choose the rate
DEIT_IMAGES, DEIT_BATCHES = 1000, 40  # of the epoch; of 50 test images
EXAMPLE = torch.zeros(1, 3, 224, 224)
Hits = NDArray[np.float64]


@dataclass(frozen=True)
class Subject:
    """Network with its methods of pruning and its recovery.

    Attributes:
        title: Title on the page.
        text: Description of the removal, the training and the scores.
        methods: Compared methods, ours first.
        rates: Three, ascending.
        start: Function from a method and a seed to the network before training.
        train: Function that trains a network at a rate with a seed, and returns it.
        held_out: Function from a network and a seed to its hits on the held-out training images.
        hits: Function from a network to its hits on the test images.
        macs: Returns a network's MACs.
    """

    title: str
    text: str
    methods: tuple[str, ...]
    rates: tuple[float, float, float]
    start: Callable[[str, int], nn.Module]
    train: Callable[[nn.Module, float, int], nn.Module]
    held_out: Callable[[nn.Module, int], Hits]
    hits: Callable[[nn.Module], Hits]
    macs: Callable[[nn.Module], int]


# ResNets on CIFAR-10


def _train(network: nn.Module, rate: float, seed: int) -> nn.Module:
    return cifar.train_one_epoch(network, EPOCH, seed + OTHER, rate, recovery_schedule)


def _held_out(network: nn.Module, seed: int) -> Hits:
    images = cifar.training_images(EPOCH + HELD_OUT["cifar"], seed + OTHER)
    return cifar.right(network, *(tensor[EPOCH:] for tensor in images))


def _narrowed(model: str, method: str, seed: int) -> nn.Module:
    network = width_peers.METHODS[method](model, seed, "macs", HALF)
    return recalibrated(network, model, "macs", HALF, method, seed)


def _shortened(method: str, seed: int) -> nn.Module:
    plan = saved_plan(f"resnet56-{method}-{layers.SHARE}-{seed}", partial(layers.planned, method, seed), PLANS)
    return layers.stages(pruned(load(layers.MODEL), plan), seed)["bn_recalibrated"]()


def _cifar(
    title: str, text: str, model: str, start: Callable[[str, int], nn.Module], methods: tuple[str, ...]
) -> Subject:
    return Subject(
        title,
        text + f" One epoch of {EPOCH:,} training images: SGD with momentum 0.9, random crops and flips; the rate is "
        f"chosen on {HELD_OUT['cifar']:,} other training images, and the test images are all 10,000 JPEGs.",
        methods,
        (0.01, 0.03, 0.1),
        lambda method, seed: load(model) if method == DENSE else start(method, seed),
        _train,
        _held_out,
        cifar.hits,
        partial(width_peers.cost_of, what="macs"),
    )


# DeiT-Tiny on 200 classes


def _called(method: str, seed: int) -> nn.Module:
    if method == DENSE:
        return deit_tiny()
    if method == ISOMORPHIC:
        return isomorphic(_ratio())
    return pruned(deit_tiny(), saved_plan(f"deit-{method}-{seed}", DEIT[method], PLANS))


@cache
def _ratio() -> float:
    """Return the least share of the channels whose removal meets the budget."""
    path = PLANS / "isomorphic.json"
    if not path.is_file():
        full = count_macs(deit_tiny(), EXAMPLE)
        PLANS.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(least_ratio(lambda ratio: 1 - count_macs(isomorphic(ratio), EXAMPLE) / full, THIRD)))
    return float(json.loads(path.read_text()))


def _planned(plan: Callable[..., Plan], **how: Any) -> Callable[[], Plan]:
    """Return a planning with only a budget, as callbacks plan."""
    return lambda: plan(deit_tiny(), Budget(macs=THIRD), batches=tiny_imagenet.calibration(), **how)


ISOMORPHIC = "torch-pruning, Taylor, isomorphic"
DEIT: Mapping[str, Callable[[], Plan]] = {
    "DepthPrune default": _planned(plan_depth),
    "whole blocks": _planned(plan_depth, kinds="block"),
    "Prune (joint)": _planned(plan_pruning, loss=tiny_imagenet.loss),
    "WidthPrune default": _planned(plan_width, loss=tiny_imagenet.loss),
    "one-shot": _planned(plan_depth, search="one_shot"),
}


def _deit_held_out(network: nn.Module, seed: int) -> Hits:
    source = tiny_imagenet.data(1, HELD_OUT["deit"], batch_size=50)
    source.setup("fit")
    with autocast():
        found = correct(tiny_imagenet.unfused(network), source.val_dataloader(), tiny_imagenet.classes())
    return found.double().numpy()


SUBJECTS: Mapping[str, Subject] = {
    "resnet20_width": _cifar(
        "ResNet-20, half of the MACs out in width",
        "Methods and calibration are those of [width](width.md).",
        "ResNet-20",
        partial(_narrowed, "ResNet-20"),
        (
            width_peers.OURS,
            "torch-pruning, Taylor, isomorphic",
            "torch-pruning, Taylor, global",
            "torch-pruning, BN scale, global",
            "torch-pruning, magnitude, uniform",
            "torch-pruning, Taylor, uniform",
            "torch-pruning, magnitude, global",
            "torch-pruning, Hessian, global",
            "prunerecover, not reconstructed",
            DENSE,
        ),
    ),
    "resnet56_width": _cifar(
        "ResNet-56, half of the MACs out in width",
        "Methods and calibration are those of [width](width.md).",
        "ResNet-56",
        partial(_narrowed, "ResNet-56"),
        (
            width_peers.OURS,
            "torch-pruning, Taylor, isomorphic",
            "torch-pruning, Taylor, global",
            "torch-pruning, BN scale, global",
            "torch-pruning, magnitude, uniform",
            DENSE,
        ),
    ),
    "resnet56_depth": _cifar(
        f"ResNet-56, {layers.SHARE:.0%} of the parameters out in depth",
        "Methods and calibration are those of [depth on the computation graph](graph_depth.md).",
        layers.MODEL,
        _shortened,
        (layers.OURS, "Taylor ascending", "blocks, Taylor", "blocks, joint", "layers, joint", "random"),
    ),
    "deit_tiny": Subject(
        f"DeiT-Tiny, {THIRD:.0%} of the MACs out",
        "Each of [the natural calls](natural_call.md), planned with a budget and nothing else on 192 training images "
        f"of tiny_imagenet. One epoch of {DEIT_IMAGES:,} images with distillation from the dense network: AdamW, "
        f"crops and flips; the rate is chosen on {HELD_OUT['deit']} other training images, and the test images are the "
        f"first {50 * DEIT_BATCHES:,} validation images.",
        ("DepthPrune default", ISOMORPHIC, "whole blocks", "Prune (joint)", "WidthPrune default", "one-shot", DENSE),
        (2e-5, 1e-4, 5e-4),
        _called,
        lambda network, rate, seed: tiny_imagenet.recover(network, DEIT_IMAGES, seed, rate=rate),
        _deit_held_out,
        lambda network: tiny_imagenet.hits(network, list(islice(tiny_imagenet.validation(), DEIT_BATCHES))),
        lambda network: count_macs(network, EXAMPLE),
    ),
}
