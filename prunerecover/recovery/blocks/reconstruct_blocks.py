"""Reconstruction of whole blocks after surgery, by gradients, on samples without labels.

In the order of computation, each block of the pruned network learns to lead from its present inputs to the hidden
states of the dense network at the same place, as in LaCo (Liu et al., ACL 2026, aclanthology.org/2026.acl-long.1342):
later blocks correct errors of earlier ones, and no error grows on the way. A block in front of removed blocks leads to
the dense states behind the removed ones. One block at a time has gradients and optimizer state, and one hidden state
of each sample is kept.

The error of a token is relative to the token's own dense state: a few tokens of language models have states hundreds of
times as large. Steps are relative to the size of each tensor. A block that comes no nearer, on held-out samples, stays
as it is; so does a block without an error, such as all blocks before the first removed unit.

Not covered, and left alone: embeddings, the head and final norm, layers outside of lists of blocks, parameters shared
with other blocks, statistics of BatchNorm (see `reconstruct`), and lists whose blocks hand on more than one state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from prunerecover.calibration.learning import Held, at_the_rate_that_helps, best_epoch
from prunerecover.calibration.samples import split_batches
from prunerecover.display.progress import progress
from prunerecover.model.batches import (
    Batches,
    ModelInputs,
    is_padding,
    listed,
    of_few_samples,
    with_samples,
    without_labels,
)
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.evaluation import device_of, evaluating, ordinary_arithmetic, uncompiled
from prunerecover.model.paths import get_module, is_within, unwrap
from prunerecover.plan.plan import Plan, check_plan
from prunerecover.recovery.blocks.spans import Span, spans_of

EPOCHS = 4
SAMPLES = 4  # in a step
RATES = (2e-2, 5e-3, 1e-3)  # first change of a parameter in a step, relative to its size: the largest that helps
TINY = 1e-12  # squared norm of a hidden state
NO_ERROR = 1e-8  # relative squared error, of rounding alone


@dataclass
class _Stream:
    """Hidden states of a batch, `(N, ..., C)`, in front of the next block: in the pruned and in the dense network."""

    inputs: ModelInputs
    pruned: Tensor
    dense: Tensor


@ordinary_arithmetic()
def reconstruct_blocks(
    model: nn.Module, dense: nn.Module, plan: Plan, batches: Batches, *, epochs: int = EPOCHS, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Fit the blocks of a pruned network, one after the other, to the hidden states of the dense one, in place.

    Made for language models and transformers after pruning in depth or width. Frozen weights change, too. Parameters
    stay the same objects, so an optimizer goes on. After an error, the blocks in front are fitted and the rest as
    before.

    Args:
        model: Network pruned by `plan`, merged or not.
        dense: Copy of the network from before the plan was applied; not changed.
        plan: Plan that pruned the network.
        batches: Calibration batches, without or with labels.
        epochs: Number of passes over the samples, for each block.
        seed: Seed of the choice of held-out samples, every 4th.

    Returns:
        The relative squared errors of each block's hidden states on held-out samples, before and after, by path.

    Raises:
        ValueError: If the networks have no lists of blocks, the plan does not lead from `dense` to `model`, the hidden
            states differ in width, there are no batches, or a batch is empty.
    """
    network, dense = unwrap(model), unwrap(dense)
    check_plan(plan)
    found: dict[str, tuple[float, float]] = {}
    cleaned = [without_labels(batch, network) for batch in with_samples(listed(batches))]
    samples = split_batches(cleaned, device_of(network), seed)
    fit = of_few_samples(samples.fit, SAMPLES)
    requiring = [parameter for parameter in network.parameters() if parameter.requires_grad]
    try:
        network.requires_grad_(False)
        with uncompiled(recurrent=True), evaluating(network, dense):
            lists = spans_of(network, dense, plan, fit[0])
            with progress("reconstructing blocks", sum(map(len, lists.values()))) as advance:
                for container, spans in lists.items():
                    learner = _Learner(BlockRunner(network, container), BlockRunner(dense, container))
                    learner.enter(spans[0], fit, samples.held_out)
                    for span in spans:
                        found[span.path] = learner.learn(span, epochs)
                        advance()
    finally:
        for parameter in requiring:
            parameter.requires_grad_()
    return found


class _Learner:
    """The streams of the samples between two blocks of a list.

    Args:
        pruned: Runner of the pruned network.
        dense: Runner of the dense network.
    """

    def __init__(self, pruned: BlockRunner, dense: BlockRunner) -> None:
        self.pruned, self.dense = pruned, dense
        self.fit: list[_Stream] = []
        self.held_out: list[_Stream] = []

    def enter(self, first: Span, fit: Sequence[ModelInputs], held_out: Sequence[ModelInputs]) -> None:
        """Run the samples up to the first block."""
        self.fit, self.held_out = (
            [
                _Stream(
                    inputs,
                    self.pruned.advance(inputs, 0, None, first.pruned[0]),
                    self.dense.advance(inputs, 0, None, first.dense[0]),
                )
                for inputs in some
            ]
            for some in (fit, held_out)
        )

    def learn(self, span: Span, epochs: int) -> tuple[float, float]:
        """Fit a block, run all streams past it, and return the held-out errors before and after."""
        for stream in (*self.fit, *self.held_out):
            stream.dense = self.dense.advance(stream.inputs, span.dense[0], stream.dense, span.dense[1])
        block = get_module(self.pruned.model, span.path)
        parameters = _own_parameters(self.pruned.model, span.path)
        start = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        before = after = self._error(span)
        best: dict[str, Tensor] = {}
        try:
            if parameters and before > NO_ERROR:
                learn = partial(self._learnt, span, epochs)
                after, best = at_the_rate_that_helps(parameters, start, RATES, learn)
        finally:
            for name, parameter in parameters.items():
                parameter.copy_((best or start)[name])
            block.requires_grad_(False)
        for stream in (*self.fit, *self.held_out):
            stream.pruned = self._run(span, stream)
        return before, after

    def _learnt(self, span: Span, epochs: int, held: Mapping[str, Held]) -> tuple[float, list[Tensor]]:
        """Return the least held-out error of a block, and the values then; none if no better."""
        sources = [one.source for one in held.values()]
        return best_epoch(
            list(held.values()),
            epochs,
            len(self.fit),
            lambda number: self._gradients(span, self.fit[number], sources),
            lambda: self._error(span),
            first=1.0,
            what=f"'{span.path}'",
        )

    def _run(self, span: Span, stream: _Stream) -> Tensor:
        return self.pruned.advance(stream.inputs, span.pruned[0], stream.pruned, span.pruned[1])

    def _error(self, span: Span) -> float:
        """Return the mean error on held-out samples."""
        errors = torch.cat([stream_errors(s.inputs, self._run(span, s), s.dense) for s in self.held_out])
        return float(errors.mean())

    def _gradients(self, span: Span, stream: _Stream, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the gradients of the error of a batch; none if any is not finite."""
        with torch.enable_grad():
            error = stream_errors(stream.inputs, self._run(span, stream), stream.dense).mean()
        found = torch.autograd.grad(error, parameters, materialize_grads=True)
        return found if all(bool(gradient.isfinite().all()) for gradient in found) else ()


def stream_errors(inputs: ModelInputs, pruned: Tensor, dense: Tensor) -> Tensor:
    """Return the squared error of each token but padding, or of each sample, relative to the dense hidden state.

    Args:
        inputs: Batch; says what is padding.
        pruned: Hidden states `(N, T, C)`, or of images `(N, ...)`.
        dense: Hidden states of the dense network, of the same shape.
    """
    if pruned.shape != dense.shape:
        raise ValueError(
            f"Expected hidden states of the same shape in both networks, but got {tuple(pruned.shape)} in the pruned "
            f"and {tuple(dense.shape)} in the dense network. Use reconstruct where the stream is narrowed."
        )
    dims = -1 if pruned.ndim == 3 else tuple(range(1, pruned.ndim))
    dense = dense.float()
    errors = (pruned.float() - dense).square().sum(dims) / dense.square().sum(dims).clamp_min(TINY)
    return errors[~is_padding(inputs, errors)]


def _own_parameters(network: nn.Module, path: str) -> dict[str, nn.Parameter]:
    """Return the parameters of a block that no other module holds, by name in the block."""
    others = {id(p) for name, p in network.named_parameters(remove_duplicate=False) if not is_within(name, path)}
    own = get_module(network, path).named_parameters()
    return {name: one for name, one in own if id(one) not in others and one.is_floating_point()}
