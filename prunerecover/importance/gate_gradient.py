"""Importance by the gradient of a gate on each unit: the search rule of BoundaryDPT (arXiv 2607.03784).

The gate h = m kept + (1 - m) removed is 1 for every unit, so the forward pass is the dense model's (straight
through); the gradient with respect to m gives the first-order cost of removal, <dL/dh, removed - kept>. `removed`
is what the unit leaves: zero for a branch, the input for an activation or a block. The authors leave the input for
attention too, and learn m over 60 epochs; here it is one pass without training.

Gate gradients of attention and activation differ in scale: compare them within a kind only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.batches import as_inputs
from prunerecover.families import Layout, describe
from prunerecover.importance.losses import loss_of
from prunerecover.importance.request import Loss
from prunerecover.observing import observing
from prunerecover.prefix import first_tensor
from prunerecover.structure import get_module, unwrap
from prunerecover.units import Unit


def gate_gradient(model: nn.Module, units: Sequence[Unit], batches: Sequence[Any], loss: Loss) -> dict[str, float]:
    """Return the first-order increase of the loss when each unit goes. Higher means keep; negative: it does harm.

    Args:
        model: Judged in evaluation mode; no `.grad` is written.
        units: Of any kind.
        batches: As `loss` takes them.
        loss: `loss(model, batch) -> scalar`, a mean over the batch.
    """
    model = unwrap(model)
    costs = torch.zeros(len(units), dtype=torch.float64)
    samples = 0
    with observing(model), gated(model, units) as gates:
        for batch in batches:
            n = as_inputs(batch).n_samples
            with torch.enable_grad():
                gradients = torch.autograd.grad(loss_of(model, batch, loss), gates, allow_unused=True)
            costs -= n * torch.tensor([0.0 if g is None else float(g) for g in gradients], dtype=torch.float64)
            samples += n
    return dict(zip((u.name for u in units), (costs / max(samples, 1)).tolist(), strict=True))


@contextmanager
def gated(model: nn.Module, units: Sequence[Unit]) -> Iterator[list[Tensor]]:
    """Put a gate that is 1 on every unit's output inside a `with` block; yield the gates, scalars, in order."""
    layout = describe(model)
    device = next(model.parameters()).device
    gates = [torch.ones((), device=device, requires_grad=True) for _ in units]
    handles = []
    try:
        for unit, gate in zip(units, gates, strict=True):
            module = get_module(model, output_path(layout, unit))
            handles.append(module.register_forward_hook(_hook(gate, unit.kind), with_kwargs=True))
        yield gates
    finally:
        for handle in handles:
            handle.remove()


def output_path(layout: Layout, unit: Unit) -> str:
    """Return the path of the module whose output is the unit's: the last of a branch."""
    branch = layout.branch(unit.name) if unit.kind in ("attention", "mlp") else None
    return unit.name if branch is None else branch.last


def _hook(gate: Tensor, kind: str) -> Any:
    def apply(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        kept = output[0] if isinstance(output, tuple) else output
        difference = kept.detach() if kind in ("attention", "mlp") else (kept - first_tensor(args, kwargs)).detach()
        opened = kept + ((gate - 1) * difference).to(kept.dtype)
        return (opened, *output[1:]) if isinstance(output, tuple) else opened

    return apply
