"""Importance by the gradient of a gate on each unit: the search rule of BoundaryDPT (arXiv 2607.03784).

The gate h = m kept + (1 - m) removed is 1 for every unit: the forward pass is the dense model's (straight through), and
the gradient with respect to m gives the first-order cost of removal, <dL/dh, removed - kept>. `removed` is the
replacement of the unit: by default zero for a branch, the input for an activation or a block. The authors pass the
input on for attention, too (`replace="identity"`), and learn m over 60 epochs; here a single pass without training is
enough.

Gate gradients of attention and activation differ in scale: compare them within a kind only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.families.describe import describe
from prunerecover.families.layout import Layout
from prunerecover.importance.context import Context
from prunerecover.importance.measuring.losses import loss_of
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.model.batches import as_inputs
from prunerecover.model.evaluation import evaluating
from prunerecover.model.hooks import first_tensor
from prunerecover.model.linears import through_last_matrix
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.units import Unit

BRANCHES = ("attention", "mlp")


def gate_gradient(context: Context) -> Scores:
    """Return the first-order increase of the loss when each unit goes. Higher means keep; negative means harmful.

    The model runs in evaluation mode, and no `.grad` is written. With `replace="calibrated"` the replacement counts as
    the start of a fit: zero for a branch, and the input for an activation.

    Raises:
        ValueError: If there is no loss, or the loss does not depend on any unit.
    """
    context = context.require_units("gate_gradient")
    model, units, loss = unwrap(context.model), context.units, context.require_loss("gate_gradient")
    for unit in units:
        if unit.kind in BRANCHES:
            context.branch(unit, "gate_gradient")  # raises where no family describes the branch
        elif unit.kind == "layer":
            raise ValueError(
                "Expected blocks, attentions, MLPs or activations for importance='gate_gradient', but got "
                f"'{unit.name}' (layer), which leaves no one thing. Use 'squared_taylor' or 'output_divergence'."
            )
    costs = torch.zeros(len(units), dtype=torch.float64)
    samples, used = 0, False
    with evaluating(model), gated(model, units, context.replace) as gates:
        for batch in context.batches:
            n = as_inputs(batch).n_samples
            with torch.enable_grad():
                gradients = torch.autograd.grad(loss_of(model, batch, loss), gates, allow_unused=True)
            used |= any(g is not None for g in gradients)
            costs -= n * torch.tensor([0.0 if g is None else float(g) for g in gradients], dtype=torch.float64)
            samples += n
    if not used:
        raise ValueError(
            "Expected a loss that depends on the units' outputs, but no gradient reached any. "
            "Does loss(model, batch) run the model that it is given?"
        )
    return dict(zip((u.name for u in units), costs / max(samples, 1), strict=True))


@contextmanager
def gated(model: nn.Module, units: Sequence[Unit], replace: str = "calibrated") -> Iterator[list[Tensor]]:
    """Put a gate of value 1 on every unit's output inside a `with` block; yield the gates, scalars, in order.

    Args:
        model: Network, unwrapped.
        units: Units of depth, of any kinds.
        replace: Replacement behind a closed gate, as in `plan_depth`; "calibrated": the start of a fit, the input of an
            activation and zero for a branch. Blocks always pass their input on.
    """
    layout = describe(model) if any(unit.kind in BRANCHES for unit in units) else None
    device = next(model.parameters()).device
    gates = [torch.ones((), device=device, requires_grad=True) for _ in units]
    with ExitStack() as stack:
        for unit, gate in zip(units, gates, strict=True):
            hook = _Gate(gate, _passes_input(unit.kind, replace))
            first, last = _ends(model, layout, unit, hook.passes_input)
            for handle in (
                get_module(model, first).register_forward_pre_hook(hook.note, with_kwargs=True),
                get_module(model, last).register_forward_hook(hook.apply),
            ):
                stack.callback(handle.remove)
        yield gates


def _ends(model: nn.Module, layout: Layout | None, unit: Unit, passes_input: bool) -> tuple[str, str]:
    """Return the paths of the modules with the unit's input and output."""
    branch = layout.branch(unit.name) if layout is not None and unit.kind in BRANCHES else None
    if branch is None:
        return unit.name, unit.name
    if not passes_input:
        return branch.path, branch.last
    return branch.path, (branch.path, *through_last_matrix(model, branch.then))[-1]


def _passes_input(kind: str, replace: str) -> bool:
    """Whether the replacement of a unit passes the input on, rather than zero."""
    return kind == "block" or replace == "identity" or (kind == "activation" and replace == "calibrated")


class _Gate:
    """Gate of a single unit."""

    def __init__(self, gate: Tensor, passes_input: bool) -> None:
        self.gate, self.passes_input = gate, passes_input
        self.left: Tensor | None = None

    def note(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the input for the replacement."""
        self.left = first_tensor(args, kwargs).detach() if self.passes_input else None

    def apply(self, _: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Return the output behind the gate."""
        kept = output[0] if isinstance(output, tuple) else output
        difference = kept.detach() if self.left is None else kept.detach() - self.left
        opened = kept + ((self.gate - 1) * difference).to(kept.dtype)
        self.left = None
        return (opened, *output[1:]) if isinstance(output, tuple) else opened
