from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cases.models.language import word_tokenizer
from cases.models.routed_language import GREEDY, PROMPTS, SETS, ByNumber, sets_of
from cases.models.tiny import tiny_llama
from torch import Tensor, nn

from prunerecover import apply_plan
from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.router import PrefixRouter


@pytest.fixture
def dense() -> nn.Module:
    return tiny_llama(num_hidden_layers=6)


@pytest.fixture
def routed(dense: nn.Module) -> RoutedCausalLM:
    return RoutedCausalLM(dense, sets_of(dense), ByNumber()).eval()


def pruned(dense: nn.Module, number: int) -> Any:
    """Oracle: a copy, pruned by a plan."""
    twin = copy.deepcopy(dense)
    apply_plan(twin, sets_of(dense).plans[number])
    return twin


def test_prompts_of_one_batch_are_answered_by_their_own_sets(dense: nn.Module, routed: RoutedCausalLM) -> None:
    assert routed.route(PROMPTS) == [1, 3, 1]
    found = routed.generate(PROMPTS, **GREEDY)
    for row, number in zip(range(3), (1, 3, 1), strict=True):
        alone = pruned(dense, number).generate(PROMPTS[row : row + 1], **GREEDY)[0]
        assert found[row, : len(alone)].tolist() == alone.tolist()


def test_logits_are_those_of_the_pruned_models(dense: nn.Module, routed: RoutedCausalLM) -> None:
    found = routed(PROMPTS)
    for row, number in enumerate((1, 3, 1)):
        torch.testing.assert_close(
            found[row], pruned(dense, number)(input_ids=PROMPTS).logits[row], atol=1e-5, rtol=1e-5
        )


def test_padding_does_not_change_the_route(routed: RoutedCausalLM) -> None:
    left = torch.cat([torch.zeros(3, 2, dtype=torch.long), PROMPTS], 1)
    mask = (torch.arange(7) >= 2).long().expand(3, 7)
    assert routed.route(left, mask) == routed.route(PROMPTS)
    plain = routed.generate(PROMPTS, **GREEDY)
    assert torch.equal(routed.generate(left, mask, **GREEDY)[:, 7:], plain[:, 5:])


def test_a_conversation_stays_with_its_set(routed: RoutedCausalLM) -> None:
    names = ["a", "b", "c"]
    routed.generate(PROMPTS, conversations=names, **GREEDY)
    moved = PROMPTS.clone()
    moved[:, 0] = 4  # set 0, for those that are new
    stays = routed.generate(moved, conversations=names, **GREEDY)
    assert torch.equal(stays, routed.generate(moved, routes=[1, 3, 1], **GREEDY))
    routed.forget("b")
    assert torch.equal(
        routed.generate(moved, conversations=names, **GREEDY), routed.generate(moved, routes=[1, 0, 1], **GREEDY)
    )


def test_sets_share_the_weights_of_the_dense_model(dense: nn.Module, routed: RoutedCausalLM) -> None:
    weights = {id(parameter) for parameter in dense.parameters()}
    for number in range(len(SETS)):
        assert all(id(parameter) in weights for parameter in routed.network(number).parameters())
    assert len(routed.state_dict()) == len(dense.state_dict())


def test_without_a_router_the_default_set_answers(dense: nn.Module) -> None:
    routed = RoutedCausalLM(dense, sets_of(dense), default="set 2")
    assert routed.route(PROMPTS) == [2, 2, 2]
    off = RoutedCausalLM(dense, sets_of(dense), ByNumber(), default="set 2", routed=False)
    assert off.route(PROMPTS) == [2, 2, 2]


@pytest.mark.gpu
def test_only_the_blocks_of_a_set_are_on_the_device(dense: nn.Module) -> None:
    routed = RoutedCausalLM(dense, sets_of(dense), ByNumber(), device="cuda")
    for number, gone in enumerate(SETS):
        routed.generate(PROMPTS.cuda(), routes=[number] * 3, **GREEDY)
        layers = dense.model.layers  # type: ignore[union-attr]
        on_host = {i for i, layer in enumerate(layers) if next(layer.parameters()).device.type == "cpu"}
        assert on_host == set(gone)


# Bad input


def test_a_router_for_other_sets(dense: nn.Module) -> None:
    with pytest.raises(ValueError, match="Expected a router for 4 sets, but it was trained for 3"):
        RoutedCausalLM(dense, sets_of(dense), PrefixRouter(32, 3))


def test_sets_for_another_model(dense: nn.Module) -> None:
    with pytest.raises(ValueError, match="Expected"):
        RoutedCausalLM(tiny_llama(num_hidden_layers=5), sets_of(dense))


@pytest.mark.parametrize(
    ("router", "how"), [(True, {"routes": [0]}), (True, {"conversations": ["known"]}), (True, {}), (False, {})]
)
def test_prompts_beyond_the_context_are_refused_whoever_picks_the_set(dense: nn.Module, router: bool, how: Any) -> None:
    routed = RoutedCausalLM(dense, sets_of(dense), ByNumber() if router else None)
    routed.generate(PROMPTS[:1], conversations=["known"], **GREEDY)
    long = torch.ones(1, 65, dtype=torch.long)
    with pytest.raises(ValueError, match="Expected prompts of at most 64 tokens, the model's context, but got 65"):
        routed.generate(long, **how, **GREEDY)
    padded = (torch.arange(65) > 0).long()[None]
    assert routed.generate(long, padded, **how, **GREEDY).shape[1] > 65
    with pytest.raises(ValueError, match="at most 64 tokens"):
        routed(long, routes=[0])


def test_a_conversation_that_is_refused_is_routed_by_its_first_prompt_that_is_not(routed: RoutedCausalLM) -> None:
    with pytest.raises(ValueError, match="at most 64 tokens"):
        routed.generate(torch.full((1, 65), 4), conversations=["new"], **GREEDY)
    found = routed.generate(PROMPTS[:1], conversations=["new"], **GREEDY)
    assert torch.equal(found, routed.generate(PROMPTS[:1], routes=[1], **GREEDY))


def test_one_text_is_no_list_of_conversations(routed: RoutedCausalLM) -> None:
    with pytest.raises(TypeError, match=r"each conversation, but got the text 'abc'. .*conversations=\['abc'\]"):
        routed.generate(PROMPTS, conversations="abc", **GREEDY)


@pytest.mark.parametrize("blocks", [3, 9])
def test_a_router_that_reads_what_a_set_removes(dense: nn.Module, blocks: int) -> None:
    match = f"no more than the 2 first blocks that all sets keep, but it reads {blocks}. .*shared_prefix={blocks}"
    with pytest.raises(ValueError, match=match):
        RoutedCausalLM(dense, sets_of(dense), PrefixRouter(32, 4, blocks=blocks))


def test_a_conversation_for_each_prompt(routed: RoutedCausalLM) -> None:
    with pytest.raises(ValueError, match="Expected a conversation for each of 3 prompts, but got 1"):
        routed.generate(PROMPTS, conversations=["a"], **GREEDY)


def test_text_routers_get_text(dense: nn.Module) -> None:
    heard: list[str] = []

    class Reads(ByNumber):
        def features(self, model: nn.Module, prompts: Any, texts: Any) -> Tensor:
            heard.extend(texts)
            return super().features(model, prompts, texts)

    RoutedCausalLM(dense, sets_of(dense), Reads(), tokenizer=word_tokenizer()).route(PROMPTS)
    assert heard[0] == "w5 w6 w7 w8 w9"
