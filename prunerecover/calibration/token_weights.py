"""Token weights: the sensitivity of the model's output to each token of each block's output.

A least-squares fit over all tokens serves the many (patches) at the cost of the one that is read (the class token),
so fits are weighted. The weight of a token is the squared gradient of the log-likelihood of a label drawn from the
model's own prediction with respect to the block's output: the trace of the Fisher information per token, which
needs no labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.model.batches import ModelInputs, call, is_padding, predictions_of, without_padding
from prunerecover.model.block_runner import BlockRunner

FLOOR = 1.0


def token_weights(runner: BlockRunner, batches: Sequence[ModelInputs], seed: int = 0) -> list[list[Tensor]]:
    """Compute token weights of mean about 1 for every block and batch.

    Where all batches have the same number of tokens, weights are averaged over samples: position matters, not content.
    A floor of one mean weight keeps the fit from resting on a few tokens (measured better than none and than uniform).

    Padding weighs nothing.

    Args:
        runner: Of the dense model.
        batches: On the model's device.
        seed: Of the labels drawn from the model's predictions.

    Returns:
        For each block a list with one tensor `(N, T)` per batch (`(N,)` if hidden states have no token axis).

    Raises:
        ValueError: If an output is NaN or infinite.
    """
    generator = torch.Generator().manual_seed(seed)
    per_batch = [_squared_gradients(runner, batch, generator) for batch in batches]
    weights = [_normalised([gradients[i] for gradients in per_batch]) for i in range(len(runner.blocks))]
    padding = [is_padding(batch, w) for batch, w in zip(batches, weights[0], strict=True)]
    return [[w.masked_fill(p, 0) for w, p in zip(block, padding, strict=True)] for block in weights]


def _normalised(weights: list[Tensor]) -> list[Tensor]:
    if len({w.shape[1:] for w in weights}) == 1:
        mean = torch.cat(weights).mean(0, keepdim=True)
        weights = [mean.expand_as(w) for w in weights]
    scale = sum(float(w.sum()) for w in weights) / sum(w.numel() for w in weights)
    if scale <= 0:
        return [torch.ones_like(w) for w in weights]
    return [(w / scale + FLOOR) / (1 + FLOOR) for w in weights]


def _squared_gradients(runner: BlockRunner, batch: ModelInputs, generator: torch.Generator) -> list[Tensor]:
    outputs: list[Tensor] = []

    def restart(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # A leaf that requires grad at the first block: gradients flow though all parameters may be frozen.
        if args:
            return (args[0].detach().requires_grad_(), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": kwargs["hidden_states"].detach().requires_grad_()}

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        outputs.append(hidden)

    handles = [runner.blocks[0].register_forward_pre_hook(restart, with_kwargs=True)]
    handles += [block.register_forward_hook(keep) for block in runner.blocks]
    try:
        with torch.enable_grad():
            output = without_padding(predictions_of(call(runner.model, batch)), batch)
            score = _log_likelihood(output, generator)
            gradients = torch.autograd.grad(score, outputs, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    filled = [torch.zeros_like(h) if g is None else g for h, g in zip(outputs, gradients, strict=True)]
    return [g.float().square().sum(-1) for g in filled]


def _log_likelihood(output: Tensor, generator: torch.Generator) -> Tensor:
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
