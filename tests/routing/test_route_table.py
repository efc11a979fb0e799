from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cases.models.routed_language import SETS, encoding, questions, removing
from cases.models.tiny import BUILD, alternating, tiny_llama
from cases.sampling import one_in
from torch import nn
from transformers import BloomConfig, BloomForCausalLM

from prunerecover import apply_plan
from prunerecover.families.describe import describe
from prunerecover.language.accuracy import choice_log_likelihoods
from prunerecover.language.likelihood import answer_batches, answer_likelihoods
from prunerecover.model.batches import ModelInputs
from prunerecover.model.block_runner import BlockRunner
from prunerecover.routing.route_table import choice_tables, each_set, route_table

ALL = tuple(map(frozenset, SETS))


@torch.no_grad()
def naive(model: nn.Module, blocks: frozenset[int], asked: list) -> list[float]:
    """Oracle: a copy without these blocks, question by question."""
    pruned = copy.deepcopy(model)
    if blocks:
        apply_plan(pruned, removing(pruned, *blocks))
    return [float(answer_likelihoods(pruned, answer_batches([q], encoding())[0])[0]) for q in asked]


@pytest.mark.parametrize(
    ("name", "changes"), one_in(2, [("llama", {}), ("qwen2", {"layer_types": alternating(6)}), ("gpt2", {})])
)
def test_every_entry_is_the_likelihood_without_the_set(name: str, changes: dict[str, Any]) -> None:
    model, asked = BUILD[name](num_hidden_layers=6, **changes), questions(7)
    table = route_table(model, (*ALL, frozenset()), asked, encoding(), batch_size=3)
    wanted = torch.tensor([naive(model, blocks, asked) for blocks in (*ALL, frozenset())]).T
    torch.testing.assert_close(table, wanted, atol=2e-5, rtol=1e-5)


def test_tables_of_all_choices_are_those_of_pruned_models() -> None:
    model, asked = tiny_llama(num_hidden_layers=6), questions(7)
    likely, right = choice_tables(model, ALL, asked, encoding(), batch_size=3)
    torch.testing.assert_close(likely, route_table(model, ALL, asked, encoding()), atol=2e-5, rtol=1e-5)
    for number, blocks in enumerate(ALL):
        pruned = copy.deepcopy(model)
        apply_plan(pruned, removing(pruned, *blocks))
        found = choice_log_likelihoods(pruned, asked, encoding())
        assert right[:, number].tolist() == [int(f.argmax()) == q.answer for f, q in zip(found, asked, strict=True)]


@torch.no_grad()
def test_blocks_that_answer_with_a_tuple_may_be_skipped_before_any_ran() -> None:
    torch.manual_seed(0)
    model: Any = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=3, n_head=4)).eval()
    ids = torch.arange(6)[None]
    sets = [frozenset(), frozenset({0}), frozenset({0, 2})]
    found = each_set(BlockRunner(model, "transformer.h"), ModelInputs(kwargs={"input_ids": ids}), sets, torch.clone)
    for logits, gone in zip(found, sets, strict=True):
        other = copy.deepcopy(model)
        other.transformer.h = nn.ModuleList(block for i, block in enumerate(other.transformer.h) if i not in gone)
        assert torch.equal(logits, other(input_ids=ids, use_cache=False).logits)


def test_what_sets_share_is_computed_once() -> None:
    model = tiny_llama(num_hidden_layers=6)
    computed = []
    for block in describe(model).blocks:  # blocks that are skipped call none of their parts
        model.get_submodule(f"{block.path}.self_attn").register_forward_hook(lambda *_: computed.append(1))
    route_table(model, ALL, questions(3), encoding())
    assert sum(6 - len(blocks) for blocks in ALL) == 17
    assert len(computed) == 9


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([{2}, {6}], "Expected sets of blocks from 0 to 5, but set 1 names 6"),
        ([{-1}], "Expected sets of blocks from 0 to 5, but set 0 names -1"),
        ([set(range(6))], "Expected sets that leave one of the 6 blocks or more, but set 0 removes all"),
        ([], "Expected one set of blocks or more, but got none"),
    ],
)
def test_sets_that_are_none(sets: list[set[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        route_table(tiny_llama(num_hidden_layers=6), [frozenset(one) for one in sets], questions(1), encoding())
