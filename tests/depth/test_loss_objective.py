"""Searches in depth that minimise a loss: the likelihood of text or of answers, or a user's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.engine import batch_of, build
from cases.models.language import word_tokenizer
from cases.models.tiny import tiny_llama
from cases.sampling import one_in
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import Plan, plan_depth
from prunerecover.language.likelihood import Encoding, answer_batches, answer_loss, next_token_loss
from prunerecover.language.questions import Question

BLOCKS = 5


@pytest.fixture
def llama() -> nn.Module:
    return tiny_llama(num_hidden_layers=BLOCKS)


def texts(seed: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 60, (4, 12), generator=generator)} for _ in range(2)]


@torch.no_grad()
def loss_without(model: Any, gone: set[int], batches: list[dict[str, Tensor]]) -> float:
    """The oracle: blocks taken out of the list by hand."""
    layers = model.model.layers
    model.model.layers = nn.ModuleList(layer for i, layer in enumerate(layers) if i not in gone)
    try:
        return sum(float(next_token_loss(model, batch)) for batch in batches) / len(batches)
    finally:
        model.model.layers = layers


def naive_greedy(model: nn.Module, count: int, batches: list[dict[str, Tensor]]) -> set[int]:
    gone: set[int] = set()
    for _ in range(count):
        left = [i for i in range(BLOCKS) if i not in gone]
        gone.add(min(left, key=lambda i: loss_without(model, {*gone, i}, batches)))
    return gone


def numbers(plan: Plan) -> set[int]:
    return {int(name.rpartition(".")[2]) for name in plan.removed["block"]}


@pytest.mark.slow
@pytest.mark.parametrize("seed", one_in(3, range(5)))
def test_the_exact_search_is_the_naive_loop(llama: nn.Module, seed: int) -> None:
    batches = texts(seed)
    plan = plan_depth(
        llama, remove={"block": 3}, batches=batches, importance="cross_entropy", loss=next_token_loss, search="exact"
    )
    assert numbers(plan) == naive_greedy(llama, 3, batches)


@pytest.mark.slow
def test_the_greedy_search_loses_no_more_than_the_naive_loop(llama: nn.Module) -> None:
    batches = texts(7)
    plan = plan_depth(
        llama, remove={"block": 3}, batches=batches, importance="cross_entropy", loss=next_token_loss, search="greedy"
    )
    found = loss_without(llama, numbers(plan), batches)
    assert found <= loss_without(llama, naive_greedy(llama, 3, batches), batches) + 1e-6


@pytest.mark.slow
def test_blocks_go_by_the_likelihood_of_answers(llama: nn.Module) -> None:
    asked = [Question(f"w5 w{6 + i} w8", (f"w{9 + i}", "w10 w11"), i % 2) for i in range(8)]
    batches = answer_batches(asked, Encoding(word_tokenizer(), context=64), contrastive=True, batch_size=8)
    plan = plan_depth(
        llama, remove={"block": 1}, batches=batches, importance="cross_entropy", loss=answer_loss, search="exact"
    )

    def without(index: int) -> float:
        layers = llama.model.layers
        llama.model.layers = nn.ModuleList(layer for i, layer in enumerate(layers) if i != index)
        with torch.no_grad():
            found = sum(float(answer_loss(llama, batch)) for batch in batches)
        llama.model.layers = layers
        return found

    assert numbers(plan) == {min(range(BLOCKS), key=without)}


def test_a_users_own_loss_serves_a_vision_transformer() -> None:
    vit, images, labels = build("timm"), batch_of("timm", 8), torch.arange(8) % 4
    plan = plan_depth(
        vit,
        remove={"attention": 1},
        batches=[(images, labels)],
        importance="cross_entropy",
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        search="greedy",
    )
    assert len(plan.removed["attention"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("rows", [slice(4), slice(2)])
def test_a_loss_may_run_the_network_several_times(llama: nn.Module, rows: slice) -> None:
    """What one run gave must not answer in another, of other tokens or of another length."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        first = {"input_ids": batch["input_ids"][rows, :9]}
        return next_token_loss(model, first) + 2 * next_token_loss(model, {"input_ids": batch["input_ids"].flip(1)})

    @torch.no_grad()
    def without(gone: set[int]) -> float:
        layers = llama.model.layers
        llama.model.layers = nn.ModuleList(layer for i, layer in enumerate(layers) if i not in gone)
        found = sum(float(loss(llama, batch)) for batch in texts(0))
        llama.model.layers = layers
        return found

    plan = plan_depth(
        llama, remove={"block": 2}, batches=texts(0), importance="cross_entropy", loss=loss, search="exact"
    )
    first = min(range(BLOCKS), key=lambda i: without({i}))
    second = min((i for i in range(BLOCKS) if i != first), key=lambda i: without({first, i}))
    assert numbers(plan) == {first, second}


def test_a_loss_that_is_no_scalar_is_refused(llama: nn.Module) -> None:
    def per_token(model: nn.Module, batch: Any) -> Tensor:
        return model(**batch).logits.mean(-1)

    with pytest.raises(ValueError, match=r"Expected loss\(model, batch\) to return a scalar"):
        plan_depth(
            llama, remove={"block": 1}, batches=texts(0), importance="cross_entropy", loss=per_token, search="greedy"
        )


def test_a_loss_that_is_nan_is_refused(llama: nn.Module) -> None:
    with pytest.raises(ValueError, match="Expected finite importances from 'cross_entropy'"):
        plan_depth(
            llama,
            remove={"block": 1},
            batches=texts(0),
            importance="cross_entropy",
            loss=lambda model, batch: next_token_loss(model, batch) * float("nan"),
            search="greedy",
        )
