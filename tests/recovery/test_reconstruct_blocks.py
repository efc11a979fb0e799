"""Blocks learn the hidden states of the dense network, one after the other."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from cases.depth.conv_blocks import Block
from cases.models.tiny import tiny_images, tiny_llama, tiny_timm
from cases.planning.networks import cnn
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, plan_depth, plan_width, reconstruct_blocks
from prunerecover.model.batches import ModelInputs
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.hashing import tensors_hash
from prunerecover.recovery.blocks.reconstruct_blocks import stream_errors
from prunerecover.recovery.blocks.spans import Span, spans_of

LAYERS = [f"model.layers.{number}" for number in range(4)]


def texts(samples: int = 16, seed: int = 0) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 61, (samples, 12), generator=torch.Generator().manual_seed(seed))}


def without(dense: nn.Module, *gone: int) -> tuple[Any, Plan]:
    """Remove blocks of a Llama."""
    kept = {name: float(number not in gone) for number, name in enumerate(LAYERS)}
    how: dict[str, Any] = {"importance": lambda _: kept, "search": "one_shot", "replace": "zero"}
    plan = plan_depth(dense, remove={"block": len(gone)}, batches=[texts(2)], **how)
    network = copy.deepcopy(dense)
    apply_plan(network, plan)
    return network, plan


def last_error(network: Any, dense: Any, batch: dict[str, Tensor]) -> float:
    with torch.no_grad():
        pruned, whole = (model.model(**batch).last_hidden_state for model in (network, dense))
    return float(stream_errors(ModelInputs(kwargs=batch), pruned, whole).mean())


def test_a_block_leads_behind_the_removed_ones() -> None:
    dense = tiny_llama()
    network, plan = without(dense, 1, 2)
    (found,) = spans_of(network, dense, plan, ModelInputs(kwargs=texts(2))).values()
    assert found == [Span("model.layers.0", (0, 1), (0, 3)), Span("model.layers.1", (1, 2), (3, 4))]


def test_streams_come_nearer_on_other_samples_and_the_rest_stays() -> None:
    dense: Any = tiny_llama()
    network, plan = without(dense, 2)
    network.model.layers[1].mlp.requires_grad_(False)
    pruned, hashes = copy.deepcopy(network), [tensors_hash(each) for each in (dense, network.model.layers[0])]
    flags = [parameter.requires_grad for parameter in network.parameters()]
    errors = reconstruct_blocks(network, dense, plan, [texts()], epochs=3)
    assert list(errors) == LAYERS[:3]
    assert errors[LAYERS[0]] == (0, 0)  # nothing to learn in front of the removed block
    assert all(after < before for before, after in list(errors.values())[1:])
    assert last_error(network, dense, texts(seed=1)) < 0.9 * last_error(pruned, dense, texts(seed=1))
    assert [tensors_hash(each) for each in (dense, network.model.layers[0])] == hashes
    assert torch.equal(network.lm_head.weight, dense.lm_head.weight)
    assert [parameter.requires_grad for parameter in network.parameters()] == flags
    reconstruct_blocks(pruned, dense, plan, [texts()], epochs=3)
    assert tensors_hash(pruned) == tensors_hash(network)


def test_equal_networks_have_nothing_to_learn() -> None:
    dense = tiny_llama()
    network = copy.deepcopy(dense)
    errors = reconstruct_blocks(network, dense, Plan(), [texts()])
    assert errors == dict.fromkeys(LAYERS, (0.0, 0.0))
    assert tensors_hash(network) == tensors_hash(dense)


def test_one_block_has_gradients_at_a_time() -> None:
    dense = tiny_llama()
    network, plan = without(dense, 2)
    seen: list[set[str]] = []

    def advance(*arguments: Any) -> Tensor:
        found = original(*arguments)
        if found.requires_grad:
            seen.append({name.split(".")[2] for name, p in network.named_parameters() if p.requires_grad})
        return found

    original = BlockRunner.advance
    with mock.patch.object(BlockRunner, "advance", advance):
        reconstruct_blocks(network, dense, plan, [texts(8)], epochs=1)
    assert seen == [{"1"}] * 2 + [{"2"}] * 2  # steps of up to four samples
    assert all(parameter.grad is None for model in (network, dense) for parameter in model.parameters())


NARROWER = partial(plan_width, budget=Budget(macs=0.2), kinds=("neuron",), replace="zero")
BRANCH_GONE = partial(plan_depth, remove={"mlp": 1}, search="one_shot")


class Stages(nn.Module):
    """Two lists of residual blocks, as in a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(*(Block(3) for _ in range(2)))
        self.second = nn.ModuleList(Block(3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.second:
            x = block(x)
        return x.mean((2, 3))


def first_block_of_two(context: Any) -> dict[str, float]:
    return {unit.name: float(unit.name != "first.1") for unit in context.units}


BLOCK_GONE = partial(plan_depth, remove={"block": 1}, search="one_shot", importance=first_block_of_two)


@pytest.mark.parametrize(
    ("make", "planned", "batches"),
    [
        (tiny_llama, NARROWER, [texts()]),
        (tiny_timm, BRANCH_GONE, [tiny_images(16)]),
        (Stages, BLOCK_GONE, [tiny_images(16)]),
    ],
)
def test_other_surgery_and_other_networks(make: Any, planned: Any, batches: list[Any]) -> None:
    dense = make().eval()
    plan, network = planned(dense, batches=batches), copy.deepcopy(dense)
    apply_plan(network, plan)
    before, after = list(reconstruct_blocks(network, dense, plan, batches, epochs=1).values())[-1]
    assert 0 < after < before


def test_padding_does_not_count() -> None:
    inputs = ModelInputs(kwargs={"attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]])})
    dense = torch.randn(2, 3, 4)
    pruned = dense.clone()
    pruned[0, 0] += 1
    assert not stream_errors(inputs, pruned, dense).any()
    assert stream_errors(ModelInputs(), pruned, dense).sum() > 0


def test_errors() -> None:
    dense = tiny_llama()
    network, plan = without(dense, 2)
    with pytest.raises(ValueError, match="'model.layers' has 3 blocks in the first and 3 in the second, and the plan "):
        reconstruct_blocks(network, network, plan, [texts()])
    with pytest.raises(ValueError, match="'model.layers' has 3 blocks in the first and 4 .* removes 0. Copy the net"):
        reconstruct_blocks(network, dense, Plan(), [texts()])
    with pytest.raises(ValueError, match="network with a list of blocks, .* but Sequential has none. Use reconstruct,"):
        reconstruct_blocks(cnn(), cnn(), Plan(), [torch.randn(8, 3, 16, 16)])
    with pytest.raises(ValueError, match=r"hidden states of the same .* \(1, 2, 3\) in the pruned and \(1, 2, 4\)"):
        stream_errors(ModelInputs(), torch.zeros(1, 2, 3), torch.zeros(1, 2, 4))
    with pytest.raises(ValueError, match="at least one calibration batch"):
        reconstruct_blocks(network, dense, plan, [])
