"""Shared low-rank adapters for several sets of removed blocks, taught by the whole model without adapters.

PuDDing (Wee et al., arXiv 2502.04348, section 4.4) trains adapters for each omission set. Here each training step
leaves out the blocks of a single set, all sets share the adapters, and the dense model is the teacher: the same weights
with all blocks and without adapters (self-distillation), so there is no second copy. Adapters are merged once, into the
dense weights, and every set routes over them. Covers the removal of whole blocks only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.model.batches import ModelInputs, call, logits_of, without_labels, without_padding
from prunerecover.model.evaluation import evaluating
from prunerecover.model.paths import is_of_peft
from prunerecover.plan.edits import Edit
from prunerecover.recovery.distillation import distillation_loss
from prunerecover.surgery.apply_edits import Applied, apply_edits, undo


def set_of_step(step: int, count: int, seed: int = 0) -> int:
    """Return the index of the omission set of a step: each set once in `count` steps, in a new order each round.

    Args:
        step: Number of the step, from 0.
        count: Number of sets.
        seed: Seed of the orders.

    >>> sorted(set_of_step(step, 4) for step in range(8, 12))
    [0, 1, 2, 3]
    """
    generator = torch.Generator().manual_seed(1_000_003 * seed + step // count)
    return int(torch.randperm(count, generator=generator)[step % count])


class WithoutUnits:
    """Context for a network without the units of a plan; the units are back afterwards.

    Remaining blocks are the same modules, so gradient checkpointing may run them again after the context has ended.

    Args:
        network: Network without wrappers; adapters may be injected.
        edits: Edits of a plan for the network, without fitted tensors.
    """

    def __init__(self, network: nn.Module, edits: Sequence[Edit]) -> None:
        self.network, self.edits = network, edits
        self._applied: Applied | None = None

    def __enter__(self) -> WithoutUnits:
        self._applied = apply_edits(self.network, self.edits)
        return self

    def __exit__(self, *_: Any) -> None:
        assert self._applied is not None
        undo(self.network, self._applied.journal)
        self._applied = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have all units back inside a `with` block."""
        if self._applied is None:
            yield
            return
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()


@contextmanager
def without_adapters(network: nn.Module) -> Iterator[None]:
    """Switch the adapters of a network off inside a `with` block."""
    layers: list[Any] = [m for m in network.modules() if is_of_peft(m) and hasattr(m, "enable_adapters")]
    flags = {p: p.requires_grad for layer in layers for p in layer.parameters()}  # peft changes these flags
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for parameter, flag in flags.items():
            parameter.requires_grad_(flag)


def teacher_logits(network: nn.Module, inputs: ModelInputs) -> Tensor:
    """Return the logits of the whole model without adapters `(N, T, V)`, in evaluation mode, without gradients.

    Args:
        network: Network with all blocks.
        inputs: Inputs of the student.
    """
    asked = ModelInputs(inputs.args, without_labels(inputs.kwargs, network))
    with evaluating(network), without_adapters(network):
        return logits_of(call(network, asked))


def self_distillation_loss(student: Tensor, teacher: Tensor, inputs: ModelInputs, temperature: float = 1.0) -> Tensor:
    """Return T^2 KL(teacher || student) of next tokens, mean over positions without padding.

    Args:
        student: Logits of the model without blocks, `(N, T, V)`.
        teacher: Logits from `teacher_logits`, of the same shape.
        inputs: Inputs of both networks; `attention_mask` marks padding.
        temperature: Temperature T.
    """
    return distillation_loss(without_padding(student, inputs), without_padding(teacher, inputs), temperature)
