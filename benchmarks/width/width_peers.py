"""Methods of `width.py`: each narrows a CIFAR network to a share of its MACs or parameters.

Ours are the default (gate gradients per cost; readers of a removed unit refitted on the kept units; every layer
reconstructed on the same images, before BatchNorm is recalibrated); the default without reconstruction, and also
without refitting; Tolerance of Difference as published; its order of units with uniform shares (to show the effect of
its allocation); and the default's order with uniform shares, the last three without reconstruction.

Others are `torch-pruning` (Taylor, magnitude, Hessian, BatchNorm's scale; ranked globally, uniformly or among
isomorphic layers) and `network-pruner`, the published package of FAIR-Pruner. Neither can follow a padded shortcut, so
both get an equal 1 x 1 convolution, which counts neither in MACs nor in parameters. At most 90% of a layer is removed,
for all but network-pruner, whose own bound is 99%. All score the same 256 training images. The packages run as
released: torch-pruning 1.6.1's Hessian looks parameters up by name although they are stored by identity, and so uses
the last image alone. network-pruner leaves the norms of a ConvNeXt at their former width, and the next forward pass
fails.
"""

from __future__ import annotations

import contextlib
import copy
import io
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch_pruning as tp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.data.cifar import EXAMPLE, batches, cross_entropy, training_images
from benchmarks.width.cifar_models import load
from prunerecover import Budget, apply_plan, reconstruct
from prunerecover.cost.macs import macs_by_module
from prunerecover.graph.trace import trace
from prunerecover.model.batches import as_inputs
from prunerecover.recipes.networks.cifar_resnet import CifarResNet
from prunerecover.recovery.batchnorm import batchnorms
from prunerecover.session.session import Session
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.arguments import WidthConfig, WidthRule
from prunerecover.width.rewrites.padded_shortcuts import as_convolutions, find_padded_shortcuts

SCORED = 256
STEPS = 12  # steps of the bisection for a budget
TOLERANCES = 40  # tried tolerances of the published package


def cost_of(network: nn.Module, what: str) -> int:
    """Return MACs or parameters, without convolutions in the place of padded shortcuts."""
    shortcuts = {path for path, module in network.named_modules() if path.endswith("shortcut")}
    if what == "macs":
        macs = macs_by_module(network, EXAMPLE)
        return macs[""] - sum(macs[path] for path in shortcuts)
    return sum(p.numel() for name, p in network.named_parameters() if name.rpartition(".")[0] not in shortcuts)


@cache
def full_cost(model: str, what: str) -> int:
    """Return the cost of the dense network."""
    return cost_of(load(model), what)


def removed(network: nn.Module, model: str, what: str) -> float:
    """Return the removed share of the cost."""
    return 1 - cost_of(network, what) / full_cost(model, what)


def rewritten(model: str) -> nn.Module:
    """Load a network with its padded shortcuts as equal convolutions."""
    network = load(model)
    as_convolutions(network, find_padded_shortcuts(trace(network, as_inputs(EXAMPLE))))
    return network


def closest(make: Callable[[float], nn.Module], model: str, what: str, share: float) -> nn.Module:
    """Return the network whose removed share comes closest, by bisection of a ratio."""
    low, high = 0.0, 1.0
    best = make(high / 2)
    for _ in range(STEPS):
        middle = (low + high) / 2
        network = make(middle)
        if abs(removed(network, model, what) - share) < abs(removed(best, model, what) - share):
            best = network
        low, high = (middle, high) if removed(network, model, what) < share else (low, middle)
    return best


# ours


@cache
def planner(model: str, seed: int) -> WidthAllocator:
    """Return our planner; scores are computed once per seed."""
    return WidthAllocator(Session(load(model), batches(SCORED, seed), seed=seed), WidthConfig(seed=seed))


def ours(model: str, seed: int, what: str, share: float, **how: Any) -> nn.Module:
    """Narrow by a rule of ours."""
    network = load(model)
    apply_plan(network, planner(model, seed).plan(Budget(**{what: share}), WidthRule(**how)))
    return network


def settle(network: nn.Module, method: str, model: str, seed: int, what: str, share: float) -> None:
    """Run a method's steps between narrowing and BatchNorm recalibration: reconstruction, for the default."""
    if method == OURS and batchnorms(network):
        plan = planner(model, seed).plan(Budget(**{what: share}))
        reconstruct(network, load(model), plan, batches(SCORED, seed), seed=seed)


# torch-pruning


def torch_pruning(model: str, seed: int, what: str, share: float, importance: str, how: str) -> nn.Module:
    """Narrow by torch-pruning."""
    return closest(partial(_torch_pruned, model, seed, importance, how), model, what, share)


def _torch_pruned(model: str, seed: int, importance: str, how: str, ratio: float) -> nn.Module:
    scored = prepared(model, seed, importance)
    network, score = copy.deepcopy(scored)  # as one: the Hessian's gradients go by parameter
    for parameter, other in zip(network.parameters(), scored[0].parameters(), strict=True):
        parameter.grad = None if other.grad is None else other.grad.clone()
    pruner = tp.pruner.BasePruner(
        network,
        EXAMPLE,
        importance=score,
        global_pruning=how != "uniform",
        isomorphic=how == "isomorphic",
        pruning_ratio=ratio,
        max_pruning_ratio=0.9,
        ignored_layers=[[layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1]],
        round_to=1,
        num_heads={},
        in_channel_groups={},
        out_channel_groups={},
        channel_groups={},
    )
    pruner.step()
    network.zero_grad()
    return network.eval()


@cache
def prepared(model: str, seed: int, importance: str) -> tuple[nn.Module, Any]:
    """Return a network with its gradients, and torch-pruning's importance: of the mean loss, or of each sample."""
    network = rewritten(model)
    score = {
        "taylor": tp.importance.GroupTaylorImportance,
        "magnitude": tp.importance.GroupMagnitudeImportance,
        "hessian": tp.importance.GroupHessianImportance,
        "bn_scale": tp.importance.BNScaleImportance,
    }[importance]()
    if importance in ("magnitude", "bn_scale"):
        return network, score
    for images, labels in batches(SCORED, seed, 1 if importance == "hessian" else 128):
        if importance == "hessian":
            network.zero_grad()
        cross_entropy(network, (images, labels)).backward()
        if importance == "hessian":
            score.accumulate_grad(network)
    return network, score


# network-pruner


class _Pooled(CifarResNet):
    """ResNet that averages positions by a pooling and a flattening, because the package cannot follow `mean`."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))  # type: ignore[no-any-return]


def _followed(model: str) -> nn.Module:
    network = rewritten(model)
    if isinstance(network, CifarResNet):
        network.__class__ = _Pooled
    return network


@cache
def published_scores(model: str, seed: int) -> Any:
    """Score with the published package: 256 images, 8 of each class for the distances."""
    from Network_Pruner import get_metrics

    loader = DataLoader(TensorDataset(*training_images(SCORED, seed)), batch_size=128)
    network = _followed(model)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        torch.manual_seed(seed)
        return get_metrics(
            network,
            loader,
            layers2prune=_layers(network),
            layers2analysis=_layers(network),
            the_samplesize_for_compute_distance=8,
            results_save_path=str(Path(folder) / "results.pkl"),
        )


def _layers(network: nn.Module) -> list[int]:
    """Return the numbers of the convolutions outside shortcuts, among all modules."""
    return [
        number
        for number, (path, module) in enumerate(network.named_modules())
        if isinstance(module, nn.Conv2d) and not path.endswith("shortcut")
    ]


def network_pruner(model: str, seed: int, what: str, share: float) -> nn.Module:
    """Narrow by the published package: by the closest tolerance, or by a share of the removal at tolerance 0.

    The removal is not monotone in the tolerance, so tolerances are tried in turn.
    """
    less = closest(lambda part: _published(model, seed, part, 0.0), model, what, share)
    return min((less, *_by_tolerance(model, seed)), key=lambda network: abs(removed(network, model, what) - share))


@cache
def _by_tolerance(model: str, seed: int) -> list[nn.Module]:
    return [_published(model, seed, 1.0, number / TOLERANCES) for number in range(TOLERANCES + 1)]


def _published(model: str, seed: int, part: float, tolerance: float) -> nn.Module:
    from Network_Pruner import get_ratios, get_skeleton, prune

    network = _followed(model)
    layers, scores = _layers(network), published_scores(model, seed)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        counts = [int(part * n) for n in get_ratios(network, scores, layers, ToD_level=tolerance)]
        skeleton = get_skeleton(network, counts, EXAMPLE, layers)
        return prune(  # type: ignore[no-any-return]
            skeleton,
            copy.deepcopy(network),
            scores,
            counts,
            layers2prune=layers,
            pruned_model_save_path=str(Path(folder) / "pruned.pht"),
            example_inputs=EXAMPLE,
        )[0].eval()


Method = Callable[[str, int, str, float], nn.Module]
OURS = "prunerecover (default)"
METHODS: dict[str, Method] = {
    OURS: ours,
    "prunerecover, not reconstructed": ours,
    "prunerecover, nothing taken over": partial(ours, replace="zero"),
    "prunerecover, ToD by the book": partial(ours, allocation="fair_pruner", replace="zero"),
    "prunerecover, uniform, lowest U-Score": partial(ours, allocation="uniform", importance="u_score", replace="zero"),
    "prunerecover, uniform": partial(ours, allocation="uniform"),
    "network-pruner": network_pruner,
    "torch-pruning, Taylor, global": partial(torch_pruning, importance="taylor", how="global"),
    "torch-pruning, Taylor, uniform": partial(torch_pruning, importance="taylor", how="uniform"),
    "torch-pruning, magnitude, global": partial(torch_pruning, importance="magnitude", how="global"),
    "torch-pruning, magnitude, uniform": partial(torch_pruning, importance="magnitude", how="uniform"),
    "torch-pruning, Hessian, global": partial(torch_pruning, importance="hessian", how="global"),
    "torch-pruning, Taylor, isomorphic": partial(torch_pruning, importance="taylor", how="isomorphic"),
    "torch-pruning, BN scale, global": partial(torch_pruning, importance="bn_scale", how="global"),
}
NOT_FOR_CONVNEXT = {  # the same as the default; fails; has no such scale
    "prunerecover, not reconstructed",
    "network-pruner",
    "torch-pruning, BN scale, global",
}
