"""Token weights: the sensitivity of the model's output to each token of a module's output.

A least-squares fit over all tokens serves the many (patches) at the cost of the class token, the only token read later,
so fits are weighted. The weight of a token is the squared gradient of the log-likelihood, for a label drawn from the
model's own prediction, by the module's output: the trace of the Fisher information per token, without labels. In models
with an output per token, such as language models, all tokens weigh the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.divergence.kept_outputs import MOST_KEPT
from prunerecover.model.batches import ModelInputs, call, is_padding, predictions_of, without_padding
from prunerecover.model.hooks import removed_after

FLOOR = 1.0


class TokenWeights:
    """Weights of the tokens of a module's output, of mean about 1, by batch; padding has weight 0.

    While all batches have the same number of tokens, weights are averaged over samples. Otherwise weights are kept
    while there is room, and all tokens of later batches weigh the same.

    Args:
        batches: Batches on the model's device.
    """

    def __init__(self, batches: Sequence[ModelInputs]) -> None:
        self._batches, self._shapes, self._kept = batches, list[torch.Size](), list[Tensor]()
        self._sum, self._averaged, self._scale = torch.zeros(()), True, 0.0

    def add(self, squares: Tensor) -> None:
        """Add the squared gradients of the next batch, `(N, T)`."""
        room = MOST_KEPT - sum(kept.nbytes for kept in self._kept)
        if len(self._kept) == len(self._shapes) and squares.nbytes <= room:
            self._kept.append(squares)
        self._shapes.append(squares.shape)
        self._averaged = self._averaged and self._shapes[0][1:] == squares.shape[1:]
        if self._averaged:
            self._sum = self._sum.to(squares) + squares.sum(0)

    def finish(self) -> None:
        """Normalise, once all batches were added."""
        if self._averaged:
            self._kept = [self._sum / sum(shape[0] for shape in self._shapes)]
        total = sum(float(kept.sum()) for kept in self._kept)
        self._scale = total / max(1, sum(kept.numel() for kept in self._kept))

    def of(self, number: int) -> Tensor:
        """Return the weights on a batch, `(N, T)` (`(N,)` if states have no token axis)."""
        shape, place = self._shapes[number], 0 if self._averaged else number
        found = self._sum.new_ones(shape)
        if place < len(self._kept) and self._scale > 0:
            found = ((self._kept[place] / self._scale + FLOOR) / (1 + FLOOR)).expand(shape)
        return found.masked_fill(is_padding(self._batches[number], found), 0)


def row_weights(
    model: nn.Module, paths: Sequence[str], batches: Sequence[ModelInputs], seed: int = 0
) -> list[TokenWeights]:
    """Compute weights of the rows of each module's output.

    Where all batches have the same number of tokens, weights are averaged over samples: position matters, not content.
    A floor of a single mean weight keeps the fit from resting on a few tokens. Measured on DeiT-Tiny, which reads the
    class token, the floor was better than none and than uniform weights; on SmolLM2-135M, with an output per token,
    uniform was better.

    Args:
        model: Dense, in evaluation mode.
        paths: Paths of modules in order of execution, each called once, with outputs `(N, ..., C)`, alone or first.
        batches: Batches on the model's device.
        seed: Seed of the labels drawn from the model's predictions.

    Raises:
        ValueError: If an output is NaN or infinite.
    """
    generator, modules = torch.Generator().manual_seed(seed), dict(model.named_modules())
    found = [TokenWeights(batches) for _ in paths]
    own, per_row = [modules[path] for path in paths], True
    for batch in batches:
        ones = _ones_by_row(model, own, batch) if per_row else None
        per_row = ones is not None
        squares = _squares_by_row(model, own, batch, generator) if ones is None else ones
        for weights, rows in zip(found, squares, strict=True):
            weights.add(rows)
    for weights in found:
        weights.finish()
    return found


def _ones_by_row(model: nn.Module, modules: Sequence[nn.Module], batch: ModelInputs) -> list[Tensor] | None:
    """Return a one for each row of each module's output, by sample; None if the model's output is not one per row."""
    rows: list[torch.Size] = []
    with torch.no_grad(), removed_after(*(one.register_forward_hook(_shape_into(rows)) for one in modules)):
        output = predictions_of(call(model, batch))
    if output.ndim < 3 or output.shape[:-1] != rows[0]:
        return None
    return [output.new_ones(shape).float().reshape(batch.n_samples, -1) for shape in rows]


def _shape_into(rows: list[torch.Size]) -> Callable[[nn.Module, Any, Any], None]:
    return lambda _, __, output: rows.append(_first(output).shape[:-1])


def _first(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _squares_by_row(
    model: nn.Module, modules: Sequence[nn.Module], batch: ModelInputs, generator: torch.Generator
) -> list[Tensor]:
    """Return the squared gradients of the rows of each module's output, by sample."""
    given: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> Any:
        given.append(_first(output) if given else _first(output).detach().requires_grad_())
        return (given[-1], *output[1:]) if isinstance(output, tuple) else given[-1]

    with removed_after(*(one.register_forward_hook(keep) for one in modules)), torch.enable_grad():
        output = predictions_of(call(model, batch))
        score = drawn_log_likelihood(without_padding(output, batch), generator)
        gradients = torch.autograd.grad(score, given, allow_unused=True, materialize_grads=True)
    return [one.float().square().sum(-1).reshape(batch.n_samples, -1) for one in gradients]


def drawn_log_likelihood(output: Tensor, generator: torch.Generator) -> Tensor:
    """Return the log-likelihood of labels drawn from an output of logits, summed over positions, in nats.

    Other outputs are projected on random signs instead, relative to their norm.

    Args:
        output: `(N, classes)`, `(N, tokens, vocabulary)`, or another tensor.
        generator: Generator of the draws, on the CPU.

    Raises:
        ValueError: If the output is NaN or infinite.
    """
    output = output.float()
    if not (output < math.inf).all():
        raise ValueError(
            "Expected finite outputs on the calibration batches, but got NaN or infinity. Check the inputs, and "
            "compute the model in float32."
        )
    if output.ndim in (2, 3) and output.shape[-1] > 1:
        flat = output.flatten(0, -2)
        drawn = torch.multinomial(flat.detach().softmax(-1).cpu(), 1, generator=generator).flatten()
        return flat.log_softmax(-1).gather(-1, drawn.to(flat.device)[:, None]).sum()
    signs = torch.randint(0, 2, output.shape, generator=generator).to(output) * 2 - 1
    direction: Tensor = signs / output.detach().square().sum().sqrt().clamp_min(1e-12)
    return (output * direction).sum()
