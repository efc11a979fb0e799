"""Stream of a model's activations at the taps of groups, and of gradients of a loss, to consumers.

Consumers are called batch by batch inside the forward pass, as long as an activation exists, and keep only what the
score needs. Each tap can carry gates, factors of 1 per sample and unit, which change no value; the gradient with
respect to a gate is the sum over the unit's positions of o dL/do, also where the next layer writes into o. A head of
several channels has a gate for each channel.

The model runs in evaluation mode, and is bit-identical afterwards.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from prunerecover.display.progress import progress
from prunerecover.importance.measuring.losses import Loss, loss_of, trainable
from prunerecover.importance.measuring.routed import Routed, read_call
from prunerecover.importance.measuring.unit_slices import spread, units_of
from prunerecover.model.batches import ModelInputs, as_inputs, call, is_padding
from prunerecover.model.checks import check_differentiable, listed
from prunerecover.model.evaluation import evaluating, inputs_of, ordinary_arithmetic, uncompiled
from prunerecover.model.hooks import removed_after
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.groups import Group, Tap
from prunerecover.refusal import Refusal


@dataclass(frozen=True)
class TapCall:
    """Tap of a group in a single call of the module: shared modules are called several times."""

    group: str
    tap: Tap
    call: int = 0


class Consumer:
    """Callbacks of `stream` for each batch; a subclass overrides the methods of its choice.

    Attributes:
        gated: Whether the consumer needs the gradients of the gates.
        parameters: Parameters with gradients for the consumer.
    """

    gated: bool = False
    parameters: Sequence[Parameter] = ()

    def watches(self, group: Group, tap: Tap) -> bool:
        """Whether the consumer reads the activations at a tap."""
        return False

    def begin(self, batch: Any, n: int) -> None:
        """Prepare for a batch of `n` samples, as the user gave the batch, before the model runs."""

    def see(self, tap_call: TapCall, values: Tensor) -> None:
        """Read activations, `(n, size, entries per unit)`; the tensor may be overwritten after the call."""

    def route(self, tap_call: TapCall, routed: Routed) -> None:
        """Read the choices of a router, at a tap of routed experts."""

    def end(self, n: int, gates: dict[TapCall, Tensor], gradients: dict[Parameter, Tensor]) -> None:
        """Read gradients of the batch's mean loss with respect to the gates and the parameters.

        Args:
            n: Samples in the batch.
            gates: Gradients of the gates by tap, `(n, size * channels per unit)`.
            gradients: Gradients of the `parameters` that the loss depends on.
        """


def stream(
    model: nn.Module,
    groups: Sequence[Group],
    batches: Iterable[Any],
    consumers: Sequence[Consumer],
    loss: Loss | None = None,
) -> None:
    """Run every batch through the model once, and hand activations and gradients to the consumers.

    Args:
        model: Network in any mode; run in evaluation mode. No `.grad` is written.
        groups: Groups with the taps to watch.
        batches: Batches for `loss`; without a consumer of gradients, batches for the model (labels are left out).
        consumers: Consumers, called in order.
        loss: `loss(model, batch) -> scalar`, a mean over the batch; needed if a consumer wants gradients.

    Raises:
        ValueError: If there is no batch, a gradient is wanted without a loss, no gradient arrives or can arrive, a
            tap's module is not called, or the activations do not have the units or samples of the group.
    """
    model = unwrap(model)
    parameters = list(dict.fromkeys(p for consumer in consumers for p in consumer.parameters))
    backward = bool(parameters) or any(consumer.gated for consumer in consumers)
    if backward and loss is None:
        raise ValueError(
            "Expected a loss, loss(model, batch) -> scalar, for a score that needs gradients, but got None."
        )
    if backward:
        check_differentiable(model)
    taps = _Taps(model, groups, consumers)
    seen = moved = False
    shown = progress("scoring units", len(batches) if isinstance(batches, Sized) else None)
    eager = uncompiled(recurrent=any(isinstance(module, nn.RNNBase) for module in model.modules()))
    with ordinary_arithmetic(), evaluating(model), eager, trainable(parameters), taps.attached(), shown as done:
        for batch in batches:
            seen = True
            taps.start(as_inputs(batch))
            for consumer in consumers:
                consumer.begin(batch, taps.n)
            gates, gradients = _run(model, batch, loss if backward else None, taps, parameters)
            taps.check_all_called()
            moved = moved or any(bool(gradient.any()) for gradient in (*gates.values(), *gradients.values()))
            for consumer in consumers:
                consumer.end(taps.n, gates, gradients)
            done()
    if not seen:
        raise ValueError("Expected at least one batch, but there was none. Was a generator consumed before?")
    if backward and not moved:
        warnings.warn(
            "The gradient of the loss is zero in every batch, so that all units score alike. Pass "
            'loss=f(model, batch), or importance="magnitude".',
            stacklevel=2,
        )


def _run(
    model: nn.Module, batch: Any, loss: Loss | None, taps: _Taps, parameters: Sequence[Parameter]
) -> tuple[dict[TapCall, Tensor], dict[Parameter, Tensor]]:
    if loss is not None:
        return _gradients(model, batch, loss, taps, parameters)
    call(model, inputs_of(batch, model))
    return {}, {}


def _gradients(
    model: nn.Module, batch: Any, loss: Loss, taps: _Taps, parameters: Sequence[Parameter]
) -> tuple[dict[TapCall, Tensor], dict[Parameter, Tensor]]:
    with torch.enable_grad():
        value = loss_of(model, batch, loss)
        sources = [*taps.gates.values(), *parameters]
        taps.check_differentiated()
        found = torch.autograd.grad(value, sources, allow_unused=True) if sources else ()
    if all(gradient is None for gradient in found):
        raise ValueError(
            "Expected a loss that depends on the units, but no gradient reached any. "
            "Does loss(model, batch) run the model that it is given?"
        )
    n_gates = len(taps.gates)
    gates = {
        tap_call: _per_sample(torch.zeros_like(gate) if gradient is None else gradient, tap_call.tap, taps.n)
        for (tap_call, gate), gradient in zip(taps.gates.items(), found[:n_gates], strict=True)
    }
    reached = zip(parameters, found[n_gates:], strict=True)
    return gates, {p: gradient for p, gradient in reached if gradient is not None}


class _Taps:
    """Hooks on the taps, with the calls and gates of the current batch."""

    def __init__(self, model: nn.Module, groups: Sequence[Group], consumers: Sequence[Consumer]) -> None:
        self.n = 0
        self.inputs = ModelInputs()
        self.gates: dict[TapCall, Tensor] = {}
        self.calls: dict[tuple[str, Tap], int] = {}
        self.gated = any(consumer.gated for consumer in consumers)
        self.taps: list[tuple[nn.Module, Group, Tap, list[Consumer]]] = []
        for group in groups:
            for tap in group.taps:
                watching = [consumer for consumer in consumers if consumer.watches(group, tap)]
                if watching or self.gated:
                    self.taps.append((get_module(model, tap.module), group, tap, watching))

    def start(self, inputs: ModelInputs) -> None:
        """Forget the last batch."""
        self.n, self.inputs = inputs.n_samples, inputs
        self.gates.clear()
        self.calls.clear()

    def check_all_called(self) -> None:
        for _, group, tap, _ in self.taps:
            if (group.name, tap) not in self.calls:
                raise ValueError(
                    f"Expected '{tap.module}', where the units of '{group.name}' are seen, to be called in the "
                    "forward pass, but it was not. Leave the group out, or pass batches that use it."
                )

    def check_differentiated(self) -> None:
        """Raise Refusal if all calls of a group ran without gradients: the units would count as useless."""
        gated = {tap_call.group for tap_call in self.gates}
        left = sorted({name for name, _ in self.calls} - gated) if self.gated else []
        if left:
            raise Refusal(
                "units whose activations get gradients",
                f"those of {listed(left)} are computed under torch.no_grad, or in an autograd function that recomputes "
                "them in its backward pass",
                'Let gradients flow there, leave the units out (ignore=...), or pass importance="magnitude".',
            )

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Keep the hooks on the modules inside a `with` block."""
        with ExitStack() as stack:
            for module, group, tap, watching in self.taps:
                if tap.of == "output":
                    handle = module.register_forward_hook(self._after(group, tap, watching))
                else:
                    before = self._routing if tap.of == "routing" else self._before
                    handle = module.register_forward_pre_hook(before(group, tap, watching), with_kwargs=True)
                stack.enter_context(removed_after(handle))
            yield

    def _after(self, group: Group, tap: Tap, watching: list[Consumer]) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> Any:
            if isinstance(output, tuple):
                return (self._tap(output[0], group, tap, watching), *output[1:])
            return self._tap(output, group, tap, watching)

        return hook

    def _before(self, group: Group, tap: Tap, watching: list[Consumer]) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args:
                return (self._tap(args[0], group, tap, watching), *args[1:]), kwargs
            first = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
            return args, {**kwargs, first: self._tap(kwargs[first], group, tap, watching)}

        return hook

    def _routing(self, group: Group, tap: Tap, watching: list[Consumer]) -> Any:
        def hook(experts: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            routed = read_call(tap.module, experts, args, kwargs, group.size, self.n)
            routed = replace(routed, padding=is_padding(self.inputs, routed.padding))
            tap_call = self._next_call(group, tap)
            for consumer in watching:
                consumer.route(tap_call, routed)
            return (
                routed.gated(self._gate(tap_call, self.n, group.size, routed.chosen_weights)) if self._gating else None
            )

        return hook

    def _tap(self, tensor: Tensor, group: Group, tap: Tap, watching: list[Consumer]) -> Tensor:
        tap_call = self._next_call(group, tap)
        self._check(tensor, group, tap)
        if watching:
            values = units_of(tensor.detach(), tap, group.size, self.n)
            for consumer in watching:
                consumer.see(tap_call, values)
        if not self._gating:
            return tensor
        gates = group.size * (tap.span if group.kind == "head" else 1)
        gate = self._gate(tap_call, tensor.shape[tap.samples], gates, tensor)
        return tensor * spread(gate, tensor, tap, group.size)

    @property
    def _gating(self) -> bool:
        return self.gated and torch.is_grad_enabled()

    def _next_call(self, group: Group, tap: Tap) -> TapCall:
        number = self.calls.get((group.name, tap), 0)
        self.calls[group.name, tap] = number + 1
        return TapCall(group.name, tap, number)

    def _gate(self, tap_call: TapCall, rows: int, gates: int, like: Tensor) -> Tensor:
        gate = torch.ones(rows, gates, dtype=like.dtype, device=like.device, requires_grad=True)
        self.gates[tap_call] = gate
        return gate

    def _check(self, tensor: Tensor, group: Group, tap: Tap) -> None:
        width = tensor.shape[tap.dim] if -tensor.ndim <= tap.dim < tensor.ndim else 0
        rows = tensor.shape[tap.samples] if tap.samples < tensor.ndim else 1
        if tap.offset + group.size * tap.span > width or rows % self.n:
            raise ValueError(
                f"Expected the {tap.of} of '{tap.module}' to hold {group.size} units of {tap.span} entries along "
                f"dimension {tap.dim} and a multiple of {self.n} samples along dimension {tap.samples}, but got "
                f"shape {tuple(tensor.shape)}. Were the groups found in another model? Where samples have different "
                "numbers of rows, as the boxes of a detector, pass one sample per batch."
            )


def _per_sample(gradient: Tensor, tap: Tap, n: int) -> Tensor:
    return torch.unflatten(gradient, 0, (-1, n) if tap.apart else (n, -1)).sum(0 if tap.apart else 1)
