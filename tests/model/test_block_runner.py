"""Running from the middle: a suffix from stored hidden states equals the whole forward pass, for every family."""

from __future__ import annotations

import pytest
import torch
from cases.engine import FAMILIES, batch_of, build, output_of, unchanged
from cases.sampling import one_in
from torch import nn

from prunerecover.families.describe import describe
from prunerecover.model.batches import as_inputs
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.hooks import recording
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Remove
from prunerecover.surgery.apply_edits import apply_edits, temporarily_applied
from prunerecover.surgery.merging import block_removals


def runner_of(model: nn.Module) -> BlockRunner:
    return BlockRunner(model, describe(model).container)


@pytest.mark.parametrize("name", one_in(2, FAMILIES))
def test_cached_sweep_equals_naive_sweep(name: str) -> None:
    """Every removal of an attention, judged from stored hidden states, equals a full forward of a pruned model."""
    model, batch = build(name), batch_of(name)
    runner, inputs, hidden = runner_of(model), as_inputs(batch), None
    layout = describe(model)
    with torch.no_grad(), unchanged(model):
        for index, block in enumerate(layout.blocks):
            assert block.attention is not None
            edit = Remove(unit=block.attention.path, kind="attention")
            naive = build(name)
            apply_edits(naive, [edit])
            with temporarily_applied(model, edit, {}):
                cached = runner.finish(inputs, index, hidden)
            assert torch.allclose(cached, output_of(naive, batch), atol=1e-5)
            hidden = runner.advance(inputs, index, hidden, index + 1)


@pytest.mark.parametrize("name", one_in(2, FAMILIES))
def test_skipped_block_equals_removed_block(name: str) -> None:
    model, batch = build(name), batch_of(name)
    runner, inputs = runner_of(model), as_inputs(batch)
    with torch.no_grad(), unchanged(model):
        hidden = runner.advance(inputs, 0, None, 1)
        for index in (1, 2, 3):
            naive = build(name)
            apply_edits(naive, block_removals(naive, [index]))
            with runner.skipping([index]):
                cached = runner.finish(inputs, 1, hidden)
            assert torch.allclose(cached, output_of(naive, batch), atol=1e-5)


@pytest.mark.parametrize("name", one_in(2, FAMILIES))
def test_steps_of_any_length_agree(name: str) -> None:
    model, batch = build(name), batch_of(name)
    runner, inputs = runner_of(model), as_inputs(batch)
    with torch.no_grad():
        one_by_one = None
        for index in range(4):
            one_by_one = runner.advance(inputs, index, one_by_one, index + 1)
        assert torch.equal(runner.advance(inputs, 0, None, 4), one_by_one)
        middle = runner.advance(inputs, 0, None, 2)
        assert torch.equal(runner.advance(inputs, 2, middle, 4), one_by_one)
        assert torch.equal(runner.finish(inputs, 2, middle), output_of(model, batch))
        assert torch.equal(runner.finish(inputs, 0, None), output_of(model, batch))


def test_blocks_that_answer_with_a_tuple_are_skipped_in_kind() -> None:
    """As GPT-2 and OPT of transformers 5.0: a tensor would be taken for a tuple, and its first sample for the batch."""

    class Tupled(nn.Module):
        def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor]:
            return (hidden + 1,)

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Tupled() for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)[0]
            return x

    model, x = Stack(), torch.zeros(2, 3)
    runner = BlockRunner(model, "blocks")
    middle = runner.advance(as_inputs(x), 0, None, 2)
    assert torch.equal(runner.finish(as_inputs(x), 2, middle), torch.full((2, 3), 3.0))
    with runner.skipping([0, 1]):
        assert torch.equal(runner.finish(as_inputs(x), 0, None), torch.full((2, 3), 1.0))


def test_own_forward_of_a_block_comes_back() -> None:
    model = build("timm")
    block = model.blocks[0]
    own = block.forward
    block.forward = own
    runner = runner_of(model)
    with pytest.raises(KeyError), runner.skipping([0]):
        raise KeyError
    assert vars(block)["forward"] is own


def test_model_that_swallows_exceptions_does_not_swallow_ours() -> None:
    model = build("timm")
    forward = model.forward

    def careless(x: torch.Tensor) -> torch.Tensor:
        try:
            return forward(x)
        except Exception:
            return x

    model.forward = careless
    inputs = as_inputs(batch_of("timm"))
    with torch.no_grad():
        assert runner_of(model).advance(inputs, 0, None, 2).shape == (4, 17, 32)


def test_block_that_is_never_reached_is_an_error() -> None:
    model = build("timm")
    model.forward = lambda x: model.head(model.patch_embed(x).mean(1))
    with pytest.raises(RuntimeError, match="Expected the model to run block 1, but its forward pass never reached it"):
        runner_of(model).advance(as_inputs(batch_of("timm")), 0, None, 1)


def test_recording_notes_inputs_and_outputs() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    x = torch.randn(4, 2)
    with recording({"act": get_module(net, "1")}) as seen:
        y = net(x)
    assert torch.equal(seen["act.in"], net[0](x))
    assert seen["act.out"] is y
