"""The registry of signals, the importances of width: by the names that `plan_width` takes, or the caller's callables.

Signals are computed together: those that are streamed share one pass over the batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prunerecover.importance.registry import check_new, kind_of_thing, name_of
from prunerecover.model.evaluation import evaluating, uncompiled
from prunerecover.plan.groups import Group
from prunerecover.width.groups.unit_slices import Scores
from prunerecover.width.signals.context import WidthContext, WidthImportance
from prunerecover.width.signals.data_free import magnitude, random
from prunerecover.width.signals.expert_signals import reap, routing
from prunerecover.width.signals.first_order import fisher, gate_taylor, r_score
from prunerecover.width.signals.streaming import StreamedSignal, run_together
from prunerecover.width.signals.torch_pruning import is_torch_pruning, torch_pruning_signal
from prunerecover.width.signals.u_score import u_score


@dataclass(frozen=True)
class RegisteredSignal:
    """A signal and what planning must know of it.

    Attributes:
        name: As plans and messages state it.
        compute: Returns the importance of every unit of a context's groups; low goes first, high stays. Or an
            importance of torch-pruning.
        needs_loss: Whether it raises without a loss.
    """

    name: str
    compute: WidthImportance
    needs_loss: bool = False

    @property
    def importance(self) -> WidthImportance:
        """What is called with a context."""
        return torch_pruning_signal(self.compute) if is_torch_pruning(self.compute) else self.compute


SIGNALS = {
    entry.name: entry
    for entry in (
        RegisteredSignal("u_score", u_score),
        RegisteredSignal("r_score", r_score, needs_loss=True),
        RegisteredSignal("gate_taylor", gate_taylor, needs_loss=True),
        RegisteredSignal("fisher", fisher, needs_loss=True),
        RegisteredSignal("routing", routing),
        RegisteredSignal("reap", reap),
        RegisteredSignal("magnitude", magnitude),
        RegisteredSignal("random", random),
        RegisteredSignal("group_taylor", torch_pruning_signal("GroupTaylorImportance"), needs_loss=True),
        RegisteredSignal("group_magnitude", torch_pruning_signal("GroupMagnitudeImportance")),
        RegisteredSignal("lamp", torch_pruning_signal("LAMPImportance")),
        RegisteredSignal("fpgm", torch_pruning_signal("FPGMImportance")),
        RegisteredSignal("bn_scale", torch_pruning_signal("BNScaleImportance")),
    )
}


def register_signal(name: str, compute: WidthImportance, *, needs_loss: bool = False) -> RegisteredSignal:
    """Let a name mean an importance of your own, in `plan_width`, `WidthPrune`, recipes and the command line.

    Args:
        name: That it goes by from now on, as `removal` or `protection`.
        compute: `(context) -> {group name: importance of its units, (size,)}`, low goes first and high stays; also a
            `StreamedSignal`, which shares its pass over the batches, or an importance of torch-pruning.
        needs_loss: Whether it reads `context.loss`.

    Raises:
        ValueError: If another signal has the name.
        TypeError: If the name is no word, or nothing can be called.
    """
    check_new("signal", name, compute)
    if name in SIGNALS and SIGNALS[name].compute is not compute:
        raise ValueError(f"Expected a name that no signal has, but '{name}' is taken. Choose another.")
    SIGNALS[name] = RegisteredSignal(name, compute, needs_loss)
    return SIGNALS[name]


def signal_of(signal: str | WidthImportance | RegisteredSignal, role: str = "signals") -> RegisteredSignal:
    """Return the entry of a name, or one for a callable.

    Args:
        signal: A name, a callable, an importance of torch-pruning, or an entry of the registry.
        role: What it is asked for as, for messages.

    Raises:
        ValueError: If there is no signal of the name.
        TypeError: If it is neither a name nor a callable, or a class instead of an importance.
    """
    if isinstance(signal, RegisteredSignal):
        return signal
    if isinstance(signal, str):
        if signal not in SIGNALS:
            raise ValueError(
                f"Expected {role} among {', '.join(SIGNALS)}, or a callable (context) -> "
                f"{{group name: tensor (size,)}}, but got '{signal}'."
            )
        return SIGNALS[signal]
    if not callable(signal) or isinstance(signal, type):
        raise TypeError(
            f"Expected {role} to be a name or a callable (context) -> {{group name: tensor (size,)}}, but got "
            f"{kind_of_thing(signal)}."
        )
    return RegisteredSignal(name_of(signal), signal)


def compute_signals(context: WidthContext, signals: Sequence[str | WidthImportance]) -> list[Scores]:
    """Compute several signals; those that are streamed share one forward (and backward) pass over the batches.

    Args:
        context: What is scored, and on what. The model is judged in evaluation mode, and bit-identical afterwards.
        signals: Names, or callables.

    Returns:
        For each signal, by group: `(size,)`, float64, on the CPU. Low goes first, high stays.

    Raises:
        ValueError: If a name is unknown, a loss is missing, a group has no score or one that is not finite; and see
            each signal.
        TypeError: If a callable returns no mapping of tensors.
    """
    entries = [signal_of(signal) for signal in signals]
    for entry in entries:
        if entry.needs_loss:
            context.require_loss(entry.name)
    computed = [entry.importance for entry in entries]
    under_way = {i: signal.start(context) for i, signal in enumerate(computed) if isinstance(signal, StreamedSignal)}
    run_together(context, list(under_way.values()))
    found: list[Scores] = []
    for i, entry in enumerate(entries):
        scores = under_way[i].scores() if i in under_way else _called(computed[i], context)
        found.append(_checked(scores, entry.name, context.groups))
    return found


def _called(compute: WidthImportance, context: WidthContext) -> Mapping[str, Tensor]:
    with evaluating(context.model), uncompiled():
        return compute(context)


def _checked(scores: Any, signal: str, groups: Sequence[Group]) -> Scores:
    """Return one finite score per unit of every group, float64, on the CPU; sorting by others would be at random."""
    if not isinstance(scores, Mapping):
        raise TypeError(f"Expected '{signal}' to return {{group name: tensor}}, but got {type(scores).__name__}.")
    for group in groups:
        value = scores.get(group.name)
        if not isinstance(value, Tensor) or value.shape != (group.size,):
            found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"Expected '{signal}' to return a tensor of shape ({group.size},) for '{group.name}', one number per "
                f"unit, but got {'nothing' if value is None else found}. Return {{group.name: tensor (group.size,)}} "
                "for all of context.groups."
            )
    wrong = [group.name for group in groups if not scores[group.name].isfinite().all()]
    if wrong:
        raise ValueError(
            f"Expected finite scores from '{signal}', but those of {', '.join(wrong[:3])} are not. "
            "Check the model's output on the calibration batches for NaN, and compute it in float32."
        )
    return {group.name: scores[group.name].detach().to("cpu", torch.float64) for group in groups}
