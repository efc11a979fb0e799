"""Reconstruct what every layer gave: after surgery, without labels and without training.

Going through a pruned network in the order in which it computes, each linear layer and convolution is fitted by ridge
regression to what the same layer of the dense network gives on the same samples, from what now enters it: W becomes W +
argmin over D of |y_dense - (W + D) x_pruned|^2 + ridge |D|^2. Errors of earlier layers are so corrected by later ones.
Least-squares reconstruction is that of He et al. 2017 (arXiv 1707.06168) and, towards the dense outputs from the pruned
network's own inputs, of ThiNet's successors; we fit all kept weights of a layer, in closed form and pulled towards
their values. A layer whose output is added to a stream is fitted so that the sum comes near to the dense one: so it
also makes good what is missing in the stream, after whole blocks went. The statistics of each BatchNorm are estimated
anew before the layers behind it are fitted, over all samples together.

The last layer is left as it is: squared errors of logits are not what a model is judged by, and it has few rows to be
fitted on; fitting it, too, made CIFAR-10's ResNet-20 worse.

Made for convolutional networks with BatchNorm, whatever went of them, width or depth: a DeiT-Tiny with narrowed heads
and neurons was worse after it than before.

Not covered, and left as they are: weights that make smaller heads, whose outputs are sums of the dense one's, grouped
convolutions, transposed ones, subclasses of `nn.Linear` and `nn.Conv2d`, fused experts, weights that several layers
share, and layers with more than `LARGEST` inputs or outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.calibration.moments import Moments
from prunerecover.display.progress import progress
from prunerecover.divergence.registry import Divergence, comparing_by
from prunerecover.model.batches import Batches, ModelInputs, listed, split_batches, with_samples, without_labels
from prunerecover.model.evaluation import device_of, evaluating, ordinary_arithmetic, uncompiled
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.plan import Plan, check_plan
from prunerecover.recovery.batchnorm import batchnorms
from prunerecover.recovery.branch_ends import branch_ends
from prunerecover.recovery.dense_reference import dense_reference
from prunerecover.recovery.judged import (
    RECALIBRATED,
    RECONSTRUCTED,
    Kept,
    Way,
    all_or_nothing,
    keep_nearest,
    recalibration,
)
from prunerecover.recovery.norms_in_order import NormsInOrder
from prunerecover.recovery.reconstruction_order import (
    calls_of,
    check_between,
    kept_rows,
    of_other_outputs,
    reference_of,
)
from prunerecover.recovery.reconstruction_rows import FittedLayer, missing_outputs, rows_of

ROWS = 60  # positions or tokens that are taken per input of a layer, at most
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
    """Fit the weights of a pruned convolutional network to what the dense one gives, layer by layer, in place.

    It is judged on every 4th sample first, with the others to fit to: the network stays as it is, or gets new BatchNorm
    statistics alone, where that leaves its output, or a part of it, nearer to the dense one's (see `judged`).
    Statistics of the dense network that lag behind its weights are not fitted to; see `dense_reference`.

    BatchNorm statistics are estimated anew, over all samples: how they are put into batches does not matter. Weights
    and biases change also where they are frozen, those of BatchNorm at the ends of branches, too. Parameters stay the
    same objects, so an optimizer goes on with them. After an error the model is as before.

    Args:
        model: The network, pruned by `plan`, not merged.
        dense: A copy of it from before the plan was applied; not changed.
        plan: What pruned it.
        batches: What the network is called with, as for `plan_width`; 256 samples do. Labels, if there are any, tell
            whether the dense network's statistics are those of its weights, and are not read otherwise.
        seed: Of the positions that are taken, and of the samples that are held out.
        divergence: How outputs are compared where it is judged: a name among `divergence.registry.DIVERGENCES`, or a
            callable `(dense, pruned) -> scalar`; None: what their structure asks for.

    Returns:
        What was kept, with the output divergence of all that was tried.

    Raises:
        ValueError: If the plan is not what lies between the two networks, there are no batches, one is empty, or a fit
            comes out as NaN or infinite.
    """
    network = unwrap(model)
    check_plan(plan)
    batches = with_samples(listed(batches))
    dense = dense_reference(unwrap(dense), batches)
    samples = split_batches([without_labels(batch, network) for batch in batches], device_of(network), seed)
    ways: dict[str, Way] = {} if not batchnorms(network) else {RECALIBRATED: recalibration(network)}
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
    """Fit the layers of a pruned network to those of the dense one, and estimate BatchNorm anew, in place.

    Args:
        network: See `reconstruct`; unwrapped.
        dense: What is fitted to, as it is; unwrapped.
        plan: What lies between them.
        samples: On the network's device.
        seed: Of the positions that are taken.
        only: Paths of the layers that are fitted, each by its own weights; None: all that can be.

    Raises:
        ValueError: See `reconstruct`; also if one of `only` cannot be fitted.
    """
    reference = reference_of(dense, plan)
    rows = kept_rows(reference, plan)
    with uncompiled(), evaluating(network, reference), torch.no_grad():
        calls = calls_of(network, reference, rows, samples[0], all_layers=bool(only) or "activation" in plan.removed)
        calls = {path: number for path, number in calls.items() if path not in of_other_outputs(plan)}
        if only is not None:
            calls = _these(calls, only)
        check_between(network, reference, rows, calls)
    with all_or_nothing(network):
        statistics = _fit_all(network, reference, rows, calls, samples, seed, alone=only is not None)
        for name, value in statistics.items():
            network.get_buffer(name).copy_(value)


def _these(calls: Mapping[str, int], only: Collection[str]) -> dict[str, int]:
    """Return the calls of some layers alone."""
    missing = [path for path in only if path not in calls]
    if missing:
        raise ValueError(
            "Expected linear layers and convolutions before the last to fit, called alike in both networks and not "
            f"such as make smaller heads, but got {', '.join(missing[:3])}. Apply the plan with the tensors that it "
            "was saved with, or plan anew."
        )
    return {path: number for path, number in calls.items() if path in only}


def reconstructible(plan: Plan) -> bool:
    """Whether a plan changes what layers give, by more than the number of experts."""
    return bool(plan.removed.keys() - {"expert"})


def made_for(network: nn.Module) -> bool:
    """Whether a network is reconstructed if nobody says: where BatchNorm is what most of it normalises by."""
    others = sum("norm" in type(m).__name__.lower() for m in network.modules() if not isinstance(m, _BatchNorm))
    return len(batchnorms(network)) > others


def _fit_all(
    network: nn.Module,
    dense: nn.Module,
    rows: Mapping[str, Tensor],
    calls: Mapping[str, int],
    samples: Sequence[ModelInputs],
    seed: int,
    *,
    alone: bool = False,
) -> dict[str, Tensor]:
    """Fit layers, and return the statistics of BatchNorm by the names of their buffers.

    Where a layer is fitted alone, a BatchNorm behind it stays out of the fit.
    """
    generator = torch.Generator().manual_seed(seed)
    with uncompiled(), evaluating(network, dense), torch.no_grad():
        some = max(samples, key=lambda inputs: inputs.n_samples)
        some = some.select(torch.arange(min(some.n_samples, 2)))
        now, then = (branch_ends(model, calls, some) for model in (network, dense))
        norms, dense_passes = NormsInOrder(network, samples), FrontToBack(dense, samples)
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
        norms.set(fitted.end, *_add_behind(norms.norms[fitted.end], layer, found, moments))


def _add_behind(norm: Any, layer: Any, found: Tensor, moments: Moments) -> tuple[Tensor, Tensor]:
    """Have a layer and the BatchNorm behind it give a linear map of the inputs more.

    The weights of each output keep their norm, on which the steps of a later training depend, unless they are zero; the
    BatchNorm scales.

    Args:
        norm: The BatchNorm, its statistics those of what the layer gives.
        layer: What it reads.
        found: `(outputs, inputs + 1)`: the map, and the constant.
        moments: Of what enters the layer.

    Returns:
        The statistics that the BatchNorm has to have now, mean and variance, `(outputs,)` each.
    """
    weight = layer.weight.flatten(1).to(found)
    mean = norm.running_mean.to(found) - (0 if layer.bias is None else layer.bias.to(found))
    scale = norm.weight.to(found) / (norm.running_var.to(found) + norm.eps).sqrt()
    more = scale[:, None] * weight + found[:, :-1]
    norms = weight.norm(dim=1), more.norm(dim=1)
    shrunk = torch.where(torch.minimum(*norms) > TINY, norms[0] / norms[1], 1.0)
    new_mean, new_variance = (each.to(found) for each in moments.of(shrunk[:, None] * more))
    layer.weight.copy_((shrunk[:, None] * more).view_as(layer.weight))
    if layer.bias is not None:  # the norm takes it away
        layer.bias.zero_()
    norm.bias += (found[:, -1] - scale * mean + new_mean / shrunk).to(norm.bias.dtype)
    norm.weight.copy_((new_variance + norm.eps).sqrt() / shrunk)
    return new_mean, new_variance
