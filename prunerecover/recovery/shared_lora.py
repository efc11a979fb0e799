"""One set of low-rank adapters for several sets of removed blocks, taught by the whole model without them.

PuDDing (Wee et al., arXiv 2502.04348, section 4.4) trains adapters for each omission set. Here each training step
leaves out the blocks of one set, all sets share one set of adapters, and the dense model is the teacher: the same
weights with all blocks and without adapters (self-distillation), so there is no second copy. Adapters are merged once,
into the dense weights, and every set routes over them. Does not cover removal of anything but whole blocks.
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
    """Return which set a training step leaves out: all of them once in `count` steps, in an order drawn anew each time.

    Args:
        step: Number of the step, from 0.
        count: Of sets.
        seed: Of the orders.

    >>> sorted(set_of_step(step, 4) for step in range(8, 12))
    [0, 1, 2, 3]
    """
    generator = torch.Generator().manual_seed(1_000_003 * seed + step // count)
    return int(torch.randperm(count, generator=generator)[step % count])


class WithoutUnits:
    """Runs a network without the units of a plan, inside a `with` block; afterwards it is as it was.

    Blocks that stay are the same modules, so gradient checkpointing may run them again when the block is left.

    Args:
        network: Unwrapped; adapters may be injected.
        edits: Of a plan for it that fits no tensors.
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
    """Run a network as if it had no adapters, inside a `with` block."""
    layers: list[Any] = [m for m in network.modules() if is_of_peft(m) and hasattr(m, "enable_adapters")]
    flags = {p: p.requires_grad for layer in layers for p in layer.parameters()}  # peft sets them
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
    """Return the logits of the whole model without its adapters `(N, T, V)`, in evaluation mode, without gradients.

    Args:
        network: With all blocks.
        inputs: What the student was called with.
    """
    asked = ModelInputs(inputs.args, without_labels(inputs.kwargs, network))
    with evaluating(network), without_adapters(network):
        return logits_of(call(network, asked))


def self_distillation_loss(student: Tensor, teacher: Tensor, inputs: ModelInputs, temperature: float = 1.0) -> Tensor:
    """Return T^2 KL(teacher || student) of next tokens, mean over the positions that are not padding.

    Args:
        student: Logits of the model without blocks, `(N, T, V)`.
        teacher: Of `teacher_logits`, alike.
        inputs: Of both; its `attention_mask` marks padding.
        temperature: T.
    """
    return distillation_loss(without_padding(student, inputs), without_padding(teacher, inputs), temperature)
