"""`RoutedCausalLM`: each prompt of a batch is answered by the network of its set, from the router's states."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from cases.models.language import word_tokenizer
from cases.models.routed_language import GREEDY, PROMPTS, SETS, ByNumber, sets_of
from cases.models.tiny import tiny_llama
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from prunerecover import apply_plan
from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.router import PrefixRouter

BY_NUMBER = [1, 3, 1]
MANY = torch.randint(3, 60, (32, 7), generator=torch.Generator().manual_seed(0))


def dense() -> nn.Module:
    return tiny_llama(num_hidden_layers=6)


def routed_by(router: Any, **how: Any) -> RoutedCausalLM:
    return RoutedCausalLM(model := dense(), sets_of(model), router, **how).eval()


@pytest.fixture(scope="module")
def routed() -> RoutedCausalLM:
    return routed_by(ByNumber())


@pytest.fixture
def prefixed() -> RoutedCausalLM:
    torch.manual_seed(0)
    return routed_by(PrefixRouter(32, 4))


@pytest.fixture(scope="module")
def pruned() -> list[Any]:
    """Oracle: a copy for each set, pruned by its plan."""
    networks = [dense() for _ in SETS]
    for network, plan in zip(networks, sets_of(networks[0]).plans, strict=True):
        apply_plan(network, plan)
    return networks


def test_prompts_of_one_batch_are_answered_by_their_own_sets(routed: RoutedCausalLM, pruned: list[Any]) -> None:
    assert routed.route(PROMPTS) == BY_NUMBER
    found = routed.generate(PROMPTS, **GREEDY)
    for row, number in enumerate(BY_NUMBER):
        alone = pruned[number].generate(PROMPTS[row : row + 1], **GREEDY)[0]
        assert found[row, : len(alone)].tolist() == alone.tolist()


@pytest.mark.parametrize("more", [{}, {"position_ids": torch.arange(5) + torch.tensor([[0], [7], [1]])}])
def test_logits_are_those_of_the_pruned_models(
    routed: RoutedCausalLM, pruned: list[Any], more: dict[str, Tensor]
) -> None:
    """Arguments with a row per prompt go with their prompts."""
    found = routed(PROMPTS, **more)
    for row, number in enumerate(BY_NUMBER):
        own = {name: value[row : row + 1] for name, value in {"input_ids": PROMPTS, **more}.items()}
        torch.testing.assert_close(found[row], pruned[number](**own).logits[0], atol=1e-5, rtol=1e-5)


def test_several_sequences_per_prompt_come_in_the_order_of_the_prompts(
    routed: RoutedCausalLM, pruned: list[Any]
) -> None:
    how: dict[str, Any] = {**GREEDY, "num_beams": 3, "num_return_sequences": 2, "eos_token_id": 60}
    found = routed.generate(PROMPTS, **how)
    assert found.shape == (6, 11)
    alone = [pruned[number].generate(PROMPTS[row : row + 1], **how).tolist() for row, number in enumerate(BY_NUMBER)]
    assert found.tolist() == [sequence for sequences in alone for sequence in sequences]


def test_shorter_answers_are_padded_with_the_token_that_was_asked_for(
    routed: RoutedCausalLM, pruned: list[Any]
) -> None:
    first = pruned[0].generate(PROMPTS[:1], **GREEDY)[0, 5].item()  # the answers of the first set end at once
    found = routed.generate(PROMPTS[:2], routes=[0, 1], **{**GREEDY, "pad_token_id": 7, "eos_token_id": [first, 60]})
    assert found[0, 5:].tolist() == [first, 7, 7, 7, 7, 7]


def test_text_is_streamed(routed: RoutedCausalLM, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import TextStreamer

    routed.generate(PROMPTS[:1], streamer=TextStreamer(word_tokenizer()), **GREEDY)
    assert capsys.readouterr().out.startswith("w5 w6 w7 w8 w9 w")


def test_padding_does_not_change_the_route(routed: RoutedCausalLM) -> None:
    left = torch.cat([torch.zeros(3, 2, dtype=torch.long), PROMPTS], 1)
    mask = (torch.arange(7) >= 2).long().expand(3, 7)
    assert routed.route(left, mask) == routed.route(PROMPTS)
    plain = routed.generate(PROMPTS, **GREEDY)
    assert torch.equal(routed.generate(left, mask, **GREEDY)[:, 7:], plain[:, 5:])


def test_a_conversation_stays_with_its_set(routed: RoutedCausalLM) -> None:
    def answers(names: list[str]) -> Tensor:
        return routed.generate(moved, conversations=names, **GREEDY)

    def by(*routes: int) -> Tensor:
        return routed.generate(moved, routes=routes, **GREEDY)

    with pytest.raises(ValueError, match="at most 64 tokens"):
        routed.generate(torch.full((1, 65), 4), conversations=["a"], **GREEDY)  # refused, so not routed
    routed.generate(PROMPTS, conversations=["a", "b", "c"], **GREEDY)
    moved = PROMPTS.clone()
    moved[:, 0] = 4  # set 0, for those that are new
    assert torch.equal(answers(["a", "b", "c"]), by(1, 3, 1))
    routed.forget("b")
    assert torch.equal(answers(["a", "b", "c"]), by(1, 0, 1))


def test_sets_share_the_weights_of_the_dense_model(routed: RoutedCausalLM) -> None:
    weights = {id(parameter) for parameter in routed.model.parameters()}
    for number in range(len(SETS)):
        assert all(id(parameter) in weights for parameter in routed.network(number).parameters())
    assert len(routed.state_dict()) == len(routed.model.state_dict())


@pytest.mark.parametrize("how", [{"router": None}, {"router": ByNumber(), "routed": False}])
def test_without_a_router_the_default_set_answers(how: dict[str, Any]) -> None:
    assert routed_by(default="set 2", **how).route(PROMPTS) == [2, 2, 2]


@pytest.mark.gpu
def test_only_the_blocks_of_a_set_are_on_the_device() -> None:
    routed = routed_by(ByNumber(), device="cuda")
    for number, gone in enumerate(SETS):
        routed.generate(PROMPTS.cuda(), routes=[number] * 3, **GREEDY)
        layers = routed.model.model.layers  # type: ignore[union-attr]
        on_host = {i for i, layer in enumerate(layers) if next(layer.parameters()).device.type == "cpu"}
        assert on_host == set(gone)


def test_text_routers_get_text() -> None:
    heard: list[str] = []

    class Reads(ByNumber):
        def features(self, model: nn.Module, prompts: Any, texts: Any) -> Tensor:
            heard.extend(texts)
            return super().features(model, prompts, texts)

    routed_by(Reads(), tokenizer=word_tokenizer()).route(PROMPTS)
    assert heard[0] == "w5 w6 w7 w8 w9"


# Precision, modes, copies and threads


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_model_and_router_change_precision_together(prefixed: RoutedCausalLM, dtype: torch.dtype) -> None:
    before = prefixed.network(2)
    prefixed.to(dtype)
    assert all(0 <= number < 4 for number in prefixed.route(PROMPTS))
    assert prefixed.network(2)(input_ids=PROMPTS).logits.dtype == dtype
    held = {id(tensor) for tensor in (*prefixed.model.parameters(), *prefixed.model.buffers())}
    assert all(id(b) in held for b in prefixed.network(2).buffers())  # those that a cast exchanges, too
    assert before.training is False


def test_sets_follow_weights_that_are_exchanged(prefixed: RoutedCausalLM) -> None:
    prefixed.generate(PROMPTS, **GREEDY)
    zeros = {name: torch.zeros_like(value) for name, value in prefixed.state_dict().items()}
    prefixed.load_state_dict(zeros, assign=True)
    assert not prefixed(PROMPTS).any()


def test_routes_do_not_depend_on_dropout(prefixed: RoutedCausalLM) -> None:
    wanted = prefixed.route(MANY)
    prefixed.train()
    assert all(prefixed.route(MANY) == wanted for _ in range(5))
    assert prefixed.router is not None
    assert prefixed.router.training  # type: ignore[attr-defined]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_weights_of_its_own_that_its_sets_share(prefixed: RoutedCausalLM, copied: Any) -> None:
    wanted = prefixed.generate(PROMPTS, **GREEDY)
    twin = copied(prefixed)
    held = {id(p) for p in twin.parameters()}
    assert not held & {id(p) for p in prefixed.parameters()}
    assert all(id(p) in held for number in range(4) for p in twin.network(number).parameters())
    assert torch.equal(twin.generate(PROMPTS, **GREEDY), wanted)


def test_threads_get_the_routes_of_their_own_prompts(prefixed: RoutedCausalLM) -> None:
    ids, whole = MANY[:8], prefixed.model
    wanted, logits, wrong = prefixed.route(ids), whole(input_ids=ids).logits, list[str]()

    def serve() -> None:
        for row in [*range(8)] * 2:
            try:
                wrong.extend(["route"] * (prefixed.route(ids[row : row + 1]) != wanted[row : row + 1]))
                wrong.extend(["dense"] * (not torch.equal(whole(input_ids=ids).logits, logits)))
            except BaseException as error:  # what stops a forward pass inside the package is no Exception
                wrong.append(repr(error))

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Generation goes on from the states of prompts behind the router's blocks


class Alternating(PrefixRouter):
    """Picks sets in turn."""

    def forward(self, features: Tensor) -> Tensor:
        return torch.eye(self.n_sets)[torch.arange(len(features)) % 2]


@pytest.fixture(scope="module")
def alternating() -> RoutedCausalLM:
    return routed_by(Alternating(32, 4))


@pytest.fixture
def prefills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of the blocks run on more than one token."""
    seen, forward = list[int](), LlamaDecoderLayer.forward

    def noting(self: nn.Module, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        if hidden.shape[1] > 1:
            seen.append(self.self_attn.layer_idx)  # type: ignore[union-attr]
        return forward(self, hidden, *args, **kwargs)

    monkeypatch.setattr(LlamaDecoderLayer, "forward", noting)
    return seen


def test_first_blocks_run_once(alternating: RoutedCausalLM, prefills: list[int]) -> None:
    alternating.generate(PROMPTS[:1], **GREEDY)
    assert prefills == [0, 1, 2, 3]  # the first set has four blocks


@pytest.mark.parametrize("how", [{}, {"num_beams": 2}, {"attention_mask": torch.ones(3, 5).long()}])
def test_answers_are_those_of_the_sets(alternating: RoutedCausalLM, how: dict[str, Any]) -> None:
    found = alternating.generate(PROMPTS, **GREEDY, **how)
    assert torch.equal(found, alternating.generate(PROMPTS, routes=[0, 1, 0], **GREEDY, **how))
    for number in (-1, 0, 1):  # nothing stays on the blocks
        assert not any("forward" in vars(m) or m._forward_hooks for m in alternating.network(number).modules())


def test_padded_prompts_are_computed_anew(alternating: RoutedCausalLM, prefills: list[int]) -> None:
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    found = alternating.generate(PROMPTS, mask, **GREEDY)
    assert prefills.count(0) == 4  # prompts of two lengths for the router, and two sets
    assert torch.equal(found, alternating.generate(PROMPTS, mask, routes=[0, 1, 0], **GREEDY))
