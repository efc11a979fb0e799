"""The weight of a token equals its squared gradient by autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.engine import batch_of, build, output_of, unchanged
from torch import Tensor, nn

from prunerecover.calibration.token_weights import TokenWeights, row_weights
from prunerecover.families.describe import describe
from prunerecover.model import batches as b
from prunerecover.model.evaluation import evaluating


def weights_of(model: nn.Module, batches: list[b.ModelInputs], seed: int = 0) -> list[TokenWeights]:
    """Return the weights of each block's output."""
    return row_weights(model, [block.path for block in describe(model).blocks], batches, seed)


@pytest.mark.parametrize("name", ["timm", "bert"])
def test_token_weights_equal_squared_gradients_of_each_block(name: str) -> None:
    """The expected weight before normalisation is autograd's, for a perturbation of the block's output."""
    model = build(name)
    inputs = b.as_inputs(batch_of(name))
    with evaluating(model):
        weights = weights_of(model, [inputs], seed=3)
    logits = output_of(model, batch_of(name))
    drawn = torch.multinomial(logits.flatten(0, -2).softmax(-1), 1, generator=torch.Generator().manual_seed(3))
    nudge: list[Tensor] = []

    def add(_: nn.Module, __: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        nudge.append(torch.zeros_like(hidden, requires_grad=True))
        return (hidden + nudge[0], *output[1:]) if isinstance(output, tuple) else hidden + nudge[0]

    handle = model.get_submodule(describe(model).blocks[2].path).register_forward_hook(add)
    output = b.predictions_of(b.call(model, inputs)).flatten(0, -2)
    handle.remove()
    output.log_softmax(-1).gather(-1, drawn).sum().backward()
    raw = nudge[0].grad.square().sum(-1).mean(0, keepdim=True).expand(4, -1)
    assert torch.allclose(weights[2].of(0), (raw / raw.mean() + 1) / 2, rtol=1e-3, atol=1e-5)


def test_token_weights_average_one_and_have_a_floor() -> None:
    model = build("timm")
    with evaluating(model), unchanged(model):
        weights = weights_of(model, [b.as_inputs(batch_of("timm")), b.as_inputs(batch_of("timm", 2, seed=5))])
    for number in range(4):
        block = [weights[number].of(i) for i in (0, 1)]
        assert [w.shape for w in block] == [(4, 17), (2, 17)]
        assert torch.cat(block).mean().item() == pytest.approx(1, rel=1e-4)
        assert torch.cat(block).min() >= 0.5
    # Only the class token is read after the last block.
    assert weights[3].of(0)[0].argmax() == 0
    assert torch.allclose(weights[3].of(0)[0][1:], torch.tensor(0.5))


def test_tokens_that_have_an_output_each_weigh_the_same() -> None:
    model = build("llama")
    with evaluating(model):
        weights = weights_of(model, [b.as_inputs(batch_of("llama"))])
    assert all(torch.equal(weights[block].of(0), torch.ones(4, 9)) for block in range(4))


def test_batches_of_several_lengths_are_weighted_by_content() -> None:
    model, ids = build("bert"), batch_of("bert")["input_ids"]
    inputs = [b.as_inputs({"input_ids": some}) for some in (ids, ids[:, :5])]
    with evaluating(model):
        weights = weights_of(model, inputs)
    assert [weights[1].of(i).shape for i in (0, 1)] == [ids.shape, ids[:, :5].shape]
    assert not torch.equal(*weights[1].of(0)[:2])
