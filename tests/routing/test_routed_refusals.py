"""Refusals of `RoutedCausalLM`: of parts that do not fit, of arguments, and of prompts that are none or too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.models.routed_language import GREEDY, PROMPTS, ByNumber, sets_of
from cases.models.tiny import tiny_llama
from torch import nn

from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.router import PrefixRouter

LONG = torch.ones(1, 65, dtype=torch.long)


def dense() -> nn.Module:
    return tiny_llama(num_hidden_layers=6)


def routed_by(router: Any) -> RoutedCausalLM:
    return RoutedCausalLM(model := dense(), sets_of(model), router).eval()


@pytest.fixture(scope="module")
def routed() -> RoutedCausalLM:
    return routed_by(ByNumber())


@pytest.mark.parametrize(
    ("make", "router", "message"),
    [
        (dense, PrefixRouter(32, 3), "Expected a router for 4 sets, but it was trained for 3"),
        (dense, PrefixRouter(32, 4, blocks=3), "no more than the 2 first blocks .*reads 3. .*shared_prefix=3"),
        (lambda: tiny_llama(num_hidden_layers=5), None, "Expected the model that the plan was made for"),
    ],
)
def test_parts_that_do_not_fit(make: Callable[[], nn.Module], router: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RoutedCausalLM(make(), sets_of(dense()), router)


def test_a_router_for_a_model_of_another_width() -> None:
    with pytest.raises(ValueError, match="Expected features of 32 numbers, as of a model of width 16, but got 64"):
        routed_by(PrefixRouter(16, 4)).route(PROMPTS)


NO_SETS = "Expected the number of a set, from 0 to 3, for each of 3 samples"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"routes": [0, 4, 0]}, ValueError, NO_SETS),
        ({"routes": [0, 1]}, ValueError, NO_SETS),
        ({"routes": ["set 0", "set 1", "set 0"]}, ValueError, NO_SETS),
        ({"routes": [0.5, 1.0, 0.0]}, ValueError, NO_SETS),
        ({"conversations": "abc"}, TypeError, r"each conversation, but got the text 'abc'. .*conversations=\['abc'\]"),
        ({"conversations": ["a"]}, ValueError, "Expected a conversation for each of 3 prompts, but got 1"),
        ({"return_dict_in_generate": True}, ValueError, "Expected prompts of one set with return_dict_in.*, but got 2"),
    ],
)
def test_arguments_of_generate(
    routed: RoutedCausalLM, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        routed.generate(PROMPTS, **arguments, **GREEDY)


@pytest.mark.parametrize(
    ("ids", "mask", "error", "message"),
    [
        (PROMPTS.tolist(), None, TypeError, r"Expected tokens of prompts as a tensor, \(N, T\), but got list"),
        (PROMPTS[0], None, ValueError, r"Expected tokens of prompts, \(N, T\), .* but got shape \(5,\)"),
        (PROMPTS[:0], None, ValueError, r"Expected tokens of prompts, \(N, T\), .* but got shape \(0, 5\)"),
        (PROMPTS, torch.ones(2, 5), ValueError, r"mask of shape \(3, 5\), as the tokens have, but got \(2, 5\)"),
        (PROMPTS, torch.zeros(3, 5), ValueError, "Expected prompts of one token or more, but number 0 is empty"),
    ],
)
def test_prompts_that_are_none(
    routed: RoutedCausalLM, ids: Any, mask: Any, error: type[Exception], message: str
) -> None:
    for ask in (routed.route, routed.generate, routed.forward):
        with pytest.raises(error, match=message):
            ask(ids, mask)


@pytest.mark.parametrize(
    ("router", "how"),
    [(ByNumber(), {"routes": [0]}), (ByNumber(), {"conversations": ["known"]}), (ByNumber(), {}), (None, {})],
)
def test_prompts_beyond_the_context_are_refused_whoever_picks_the_set(router: Any, how: Any) -> None:
    routed = routed_by(router)
    routed.generate(PROMPTS[:1], conversations=["known"], **GREEDY)
    with pytest.raises(ValueError, match="Expected prompts of at most 64 tokens, the model's context, but got 65"):
        routed.generate(LONG, **how, **GREEDY)
    padded = (torch.arange(65) > 0).long()[None]
    assert routed.generate(LONG, padded, **how, **GREEDY).shape[1] > 65
    with pytest.raises(ValueError, match="at most 64 tokens"):
        routed(LONG, routes=[0])
