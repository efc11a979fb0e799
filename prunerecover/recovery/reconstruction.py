"""Reconstruction of the outputs of every layer after surgery, without labels and without training.

In the order of computation of a pruned network, each linear layer and convolution is fitted by ridge regression to the
outputs of the same layer of the dense network on the same samples, from its present inputs: W becomes W + argmin over D
of |y_dense - (W + D) x_pruned|^2 + ridge |D|^2. Later layers correct errors of earlier layers. Least-squares
reconstruction is due to He et al. 2017 (arXiv 1707.06168) and, towards the dense outputs from the inputs of the pruned
network, to the successors of ThiNet; we fit all kept weights of a layer, in closed form and pulled towards the old
values. A layer at the end of a branch is fitted to bring the sum near to the dense sum: the fit also makes good the
loss of whole blocks in the stream. The statistics of each BatchNorm are estimated anew before the layers behind it are
fitted, over all samples together, as far from those of the samples as in the dense network (see `DenseNorms`).

The last layer is left alone: squared errors of logits are no measure of a model, and the layer has few rows to be
fitted on; fitting this layer, too, made CIFAR-10's ResNet-20 worse.

Made for convolutional networks with BatchNorm after pruning in width or depth: a DeiT-Tiny with narrowed heads and
neurons was worse afterwards.

Not covered, and left alone: weights of smaller heads (with sums of dense outputs as outputs), grouped convolutions,
transposed ones, subclasses of `nn.Linear` and `nn.Conv2d`, fused experts, shared weights, and layers with more than
`LARGEST` inputs or outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.calibration.moments import Moments
from prunerecover.calibration.samples import split_batches
from prunerecover.display.progress import progress
from prunerecover.divergence.registry import Divergence, comparing_by
from prunerecover.model.batches import Batches, ModelInputs, listed, with_samples, without_labels
from prunerecover.model.evaluation import device_of, evaluating, ordinary_arithmetic, uncompiled
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.plan import Plan, check_plan
from prunerecover.recovery import reconstruction_order as order
from prunerecover.recovery.batchnorm import batchnorms
from prunerecover.recovery.branch_ends import branch_ends
from prunerecover.recovery.dense_reference import DenseNorm, DenseNorms, dense_reference, moved_at
from prunerecover.recovery.judged import (
    RECALIBRATED,
    RECONSTRUCTED,
    Kept,
    Way,
    all_or_nothing,
    keep_nearest,
    recalibration,
)
from prunerecover.recovery.norms_in_order import NormsInOrder, pooled
from prunerecover.recovery.reconstruction_rows import FittedLayer, missing_outputs, rows_of
from prunerecover.runtimes.subnormals import flush_subnormals

ROWS = 60  # positions or tokens per input of a layer, at most
TINY = 1e-12  # norm of weights


@ordinary_arithmetic()
def reconstruct(
    model: nn.Module,
    dense: nn.Module,
    plan: Plan,
    batches: Batches,
    *,
    seed: int = 0,
    divergence: str | Divergence | None = None,
) -> Kept:
    """Fit the weights of a pruned convolutional network to the outputs of the dense one, layer by layer, in place.

    The fit is judged on every 4th sample first, with the rest to fit on: the network stays as it is, or gets new
    BatchNorm statistics alone, where the output, or a part of the output, is then nearer to the dense output (see
    `judged`). Lagging statistics of the dense network are replaced in a copy; see `dense_reference`.

    BatchNorm statistics are estimated anew, over all samples, whatever the batches. Frozen weights and biases change,
    too, also in BatchNorm at the ends of branches. Parameters stay the same objects, so an optimizer goes on. After an
    error the model is as before.

    Args:
        model: Network pruned by `plan`, not merged.
        dense: Copy of the network from before the plan was applied; not changed.
        plan: Plan that pruned the network.
        batches: Calibration batches, as in `plan_width`; 256 samples are enough. Labels, if any, only tell whether the
            statistics of the dense network match its weights.
        seed: Seed of the choice of positions, and of held-out samples.
        divergence: Divergence of outputs to judge by: a name among `divergence.registry.DIVERGENCES`, or a callable
            `(dense, pruned) -> scalar`; None: chosen by the structure of the outputs.

    Returns:
        The kept way, with the output divergence of every way tried.

    Raises:
        ValueError: If the plan does not lead from `dense` to `model`, there are no batches, a batch is empty, or a fit
            comes out as NaN or infinite.
    """
    network = unwrap(model)
    check_plan(plan)
    batches = with_samples(listed(batches))
    dense = dense_reference(unwrap(dense), batches)
    samples = split_batches([without_labels(batch, network) for batch in batches], device_of(network), seed)
    ways: dict[str, Way] = {} if not batchnorms(network) else {RECALIBRATED: recalibration(network, dense, plan)}
    ways[RECONSTRUCTED] = lambda some: fit_layers(network, dense, plan, some, seed=seed)
    with comparing_by(divergence):
        return keep_nearest(network, dense, samples, ways)


def fit_layers(
    network: nn.Module,
    dense: nn.Module,
    plan: Plan,
    samples: Sequence[ModelInputs],
    *,
    seed: int = 0,
    only: Collection[str] | None = None,
) -> None:
    """Fit the layers of a pruned network to the dense layers, and estimate BatchNorm anew, in place.

    Subnormal weights of the network become zero.

    Args:
        network: Pruned network without wrappers, see `reconstruct`.
        dense: Dense network without wrappers, the target.
        plan: Plan that pruned the network.
        samples: Calibration batches on the device of the network.
        seed: Seed of the choice of positions.
        only: Paths of the layers to fit, without the BatchNorm behind; None: all suitable layers.

    Raises:
        ValueError: See `reconstruct`; also if a layer of `only` cannot be fitted.
    """
    reference = order.reference_of(dense, plan)
    rows = order.kept_rows(reference, plan)
    with uncompiled(), evaluating(network, reference), torch.no_grad():
        calls = order.calls_of(
            network, reference, rows, samples[0], all_layers=bool(only) or "activation" in plan.removed
        )
        calls = {path: number for path, number in calls.items() if path not in order.of_other_outputs(plan)}
        if only is not None:
            calls = _these(calls, only)
        order.check_between(network, reference, rows, calls)
    with all_or_nothing(network):
        with uncompiled(), evaluating(dense):
            norms = DenseNorms(dense, samples, pooled).after(plan)
        statistics = _fit_all(network, reference, rows, calls, samples, seed, norms, alone=only is not None)
        for name, value in statistics.items():
            network.get_buffer(name).copy_(value)
        flush_subnormals(network)


def _these(calls: Mapping[str, int], only: Collection[str]) -> dict[str, int]:
    """Return the calls of some layers alone."""
    missing = [path for path in only if path not in calls]
    if missing:
        raise ValueError(
            "Expected linear layers and convolutions before the last, called equally often in both networks and not "
            f"making smaller heads, but got {', '.join(missing[:3])}. Apply the plan with the tensors that it was "
            "saved with, or plan anew."
        )
    return {path: number for path, number in calls.items() if path in only}


def reconstructible(plan: Plan) -> bool:
    """Whether a plan removes more than experts."""
    return bool(plan.removed.keys() - {"expert"})


def made_for(network: nn.Module) -> bool:
    """Whether to reconstruct a network by default: more BatchNorm layers than norms of all other kinds."""
    others = sum("norm" in type(m).__name__.lower() for m in network.modules() if not isinstance(m, _BatchNorm))
    return len(batchnorms(network)) > others


def _fit_all(
    network: nn.Module,
    dense: nn.Module,
    rows: Mapping[str, Tensor],
    calls: Mapping[str, int],
    samples: Sequence[ModelInputs],
    seed: int,
    dense_norms: Mapping[str, DenseNorm],
    *,
    alone: bool = False,
) -> dict[str, Tensor]:
    """Fit layers, and return the statistics of BatchNorm by buffer name.

    With `alone`, a layer with a BatchNorm behind it is fitted to the layer output, not to the sum.
    """
    generator = torch.Generator().manual_seed(seed)
    with uncompiled(), evaluating(network, dense), torch.no_grad():
        some = max(samples, key=lambda inputs: inputs.n_samples)
        some = some.select(torch.arange(min(some.n_samples, 2)))
        now, then = (branch_ends(model, calls, some) for model in (network, dense))
        norms, dense_passes = NormsInOrder(network, samples, dense_norms), FrontToBack(dense, samples)
        with progress("reconstructing layers", len(calls)) as advance:
            for path, number in calls.items():
                norms.settle(before=path)
                ends = number == 1 and path in now and now[path] == then.get(path) and not (alone and now[path])
                _fit(
                    norms,
                    dense_passes,
                    FittedLayer(path, rows.get(path), number, now[path] if ends else None),
                    generator,
                )
                advance()
        norms.settle()
        return norms.statistics()


def _fit(norms: NormsInOrder, dense: FrontToBack, fitted: FittedLayer, generator: torch.Generator) -> None:
    network, samples = norms.network, norms.samples
    layer: Any = get_module(network, fitted.path)
    if fitted.end:
        norms.settle_one(fitted.end, fitted.path)
    entries = layer.weight[0].numel()
    wanted = -(-ROWS * entries // sum(inputs.n_samples for inputs in samples))
    moments, reached = Moments(), False
    for inputs in samples:
        for x, missing in missing_outputs(norms.passes, dense, fitted, inputs):
            moments.add(rows_of(layer, x, missing.float(), wanted, generator))
            reached = True
    if not reached:
        return
    outputs = torch.arange(entries, entries + len(layer.weight))
    shifts = isinstance(layer, nn.Conv2d) and any(isinstance(m, _BatchNorm) for m in network.modules())
    found = moments.predict(outputs, torch.arange(entries), constant=layer.bias is not None or shifts)
    if not found.isfinite().all():
        raise ValueError(
            f"Expected finite activations, but the fit of '{fitted.path}' came out as NaN or infinite. Do the batches "
            "or the weights hold such values?"
        )
    found = found.to(layer.weight.device)
    if not fitted.end:
        layer.weight += found[:, :-1].view_as(layer.weight).to(layer.weight.dtype)
        if layer.bias is not None:
            layer.bias += found[:, -1].to(layer.bias.dtype)
    else:
        behind = norms.norms[fitted.end], layer, found, moments, norms.dense.get(fitted.end)
        norms.set(fitted.end, *_add_behind(*behind))


def _add_behind(
    norm: Any, layer: Any, found: Tensor, moments: Moments, dense: DenseNorm | None = None
) -> tuple[Tensor, Tensor]:
    """Add a linear map of the inputs to the output of a layer with a BatchNorm behind it.

    The weights of each output keep their norm, a scale of later training steps, except zero weights; the BatchNorm
    takes the scale.

    Args:
        norm: BatchNorm behind the layer, with the statistics of the outputs of the layer.
        layer: Layer in front of the BatchNorm.
        found: Map and constant, `(outputs, inputs + 1)`.
        moments: Moments of the inputs of the layer.
        dense: The BatchNorm in the dense network, if known.

    Returns:
        The new statistics of the BatchNorm, mean and variance, `(outputs,)` each.
    """
    weight = layer.weight.flatten(1).to(found)
    mean = norm.running_mean.to(found) - (0 if layer.bias is None else layer.bias.to(found))
    scale = norm.weight.to(found) / (norm.running_var.to(found) + norm.eps).sqrt()
    more = scale[:, None] * weight + found[:, :-1]
    norms = weight.norm(dim=1), more.norm(dim=1)
    shrunk = torch.where(torch.minimum(*norms) > TINY, norms[0] / norms[1], 1.0)
    new_mean, new_variance = moved_at(dense, *(each.to(found) for each in moments.of(shrunk[:, None] * more)))
    layer.weight.copy_((shrunk[:, None] * more).view_as(layer.weight))
    if layer.bias is not None:  # the norm removes a constant
        layer.bias.zero_()
    norm.bias += (found[:, -1] - scale * mean + new_mean / shrunk).to(norm.bias.dtype)
    norm.weight.copy_((new_variance + norm.eps).sqrt() / shrunk)
    return new_mean, new_variance
