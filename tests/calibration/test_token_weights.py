"""The weight of a token equals its squared gradient by autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.engine import batch_of, build, output_of, unchanged
from cases.models.decoders import DECODERS
from torch import Tensor, nn

from prunerecover.calibration.candidates import BranchFit
from prunerecover.calibration.token_weights import token_weights
from prunerecover.families.describe import describe
from prunerecover.model import batches as b
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.evaluation import evaluating


@pytest.mark.parametrize("name", ["timm", "bert"])
def test_token_weights_equal_squared_gradients_of_each_block(name: str) -> None:
    """The expected weight before normalisation is autograd's, for a perturbation of the block's output."""
    model = build(name)
    inputs = b.as_inputs(batch_of(name))
    runner = BlockRunner(model, describe(model).container)
    with evaluating(model):
        weights = token_weights(runner, [inputs], seed=3)
    logits = output_of(model, batch_of(name))
    drawn = torch.multinomial(logits.flatten(0, -2).softmax(-1), 1, generator=torch.Generator().manual_seed(3))
    nudge: list[Tensor] = []

    def add(_: nn.Module, __: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        nudge.append(torch.zeros_like(hidden, requires_grad=True))
        return (hidden + nudge[0], *output[1:]) if isinstance(output, tuple) else hidden + nudge[0]

    handle = runner.blocks[2].register_forward_hook(add)
    output = b.predictions_of(b.call(model, inputs)).flatten(0, -2)
    handle.remove()
    output.log_softmax(-1).gather(-1, drawn).sum().backward()
    raw = nudge[0].grad.square().sum(-1).mean(0, keepdim=True).expand(4, -1)
    assert torch.allclose(weights.of(2, 0), (raw / raw.mean() + 1) / 2, rtol=1e-3, atol=1e-5)


def test_token_weights_average_one_and_have_a_floor() -> None:
    model = build("timm")
    runner = BlockRunner(model, "blocks")
    with evaluating(model), unchanged(model):
        weights = token_weights(runner, [b.as_inputs(batch_of("timm")), b.as_inputs(batch_of("timm", 2, seed=5))])
    for number in range(4):
        block = [weights.of(number, i) for i in (0, 1)]
        assert [w.shape for w in block] == [(4, 17), (2, 17)]
        assert torch.cat(block).mean().item() == pytest.approx(1, rel=1e-4)
        assert torch.cat(block).min() >= 0.5
    # Only the class token is read after the last block.
    assert weights.of(3, 0)[0].argmax() == 0
    assert torch.allclose(weights.of(3, 0)[0][1:], torch.tensor(0.5))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_tokens_that_have_an_output_each_weigh_the_same(name: str) -> None:
    model = build(name)
    with evaluating(model):
        weights = token_weights(BlockRunner(model, describe(model).container), [b.as_inputs(batch_of(name))])
    assert all(torch.equal(weights.of(block, 0), torch.ones(4, 9)) for block in range(4))


def _two_lengths() -> tuple[BlockRunner, list[b.ModelInputs]]:
    model, ids = build("bert"), batch_of("bert")["input_ids"]
    inputs = [b.as_inputs({"input_ids": some}) for some in (ids, ids[:, :5])]
    return BlockRunner(model, describe(model).container), inputs


def test_batches_of_several_lengths_are_weighted_by_content() -> None:
    runner, inputs = _two_lengths()
    with evaluating(runner.model):
        weights = token_weights(runner, inputs)
    assert [weights.of(1, i).shape for i in (0, 1)] == [batch.kwargs["input_ids"].shape for batch in inputs]
    assert not torch.equal(*weights.of(1, 0)[:2])


@pytest.mark.parametrize(
    ("name", "kind", "scale", "beside"),
    [("granite", "attention", 0.3, False), ("granite", "mlp", 0.3, False), ("gpt_neox", "attention", 1.0, False)]
    + [(name, "mlp", 1.0, True) for name in ("gpt_neox", "phi", "stablelm_parallel")],
)
def test_constant_leads_to_the_dense_stream(name: str, kind: str, scale: float, beside: bool) -> None:
    branch = getattr(describe(DECODERS[name].build()).blocks[1], kind)
    stream, other, constant = torch.randn(2, 5, 32), torch.randn(2, 5, 32), torch.randn(32)
    seen = {f"{branch.stream}.in": stream, f"{branch.path}.in": torch.randn(2, 5, 32)}
    if beside:  # what the attention adds first is no drift that the MLP has to make up for
        assert branch.beside is not None
        seen[f"{branch.beside}.out"] = other
        stream = stream + other
    fit = BranchFit(branch)
    fit.add(seen, stream + scale * constant, torch.ones(2, 5))
    found = next(candidate for candidate in fit.candidates() if candidate.leaves == "constant")
    torch.testing.assert_close(found.values["bias"].float(), constant, atol=1e-4, rtol=0)
