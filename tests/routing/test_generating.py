"""`RoutedCausalLM.generate` and `forward`, in batches of several sets, with blocks returning from host memory."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from cases.models.language import word_tokenizer
from cases.models.routed_language import sets_of
from cases.models.tiny import tiny_llama
from torch import Tensor, nn

from prunerecover.routing.host_memory import HostMemory
from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.router import PrefixRouter

PROMPTS = torch.tensor([[5, 6, 7, 8, 9], [11, 12, 13, 14, 15], [21, 22, 23, 24, 25]])
ROUTES = [0, 1, 0]
GREEDY = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}


@pytest.fixture
def dense() -> nn.Module:
    return tiny_llama(num_hidden_layers=6)


@pytest.fixture
def routed(dense: nn.Module) -> RoutedCausalLM:
    torch.manual_seed(0)
    return RoutedCausalLM(dense, sets_of(dense), PrefixRouter(32, 4)).eval()


def alone(routed: RoutedCausalLM, row: int, **how: Any) -> list[list[int]]:
    """Oracle: a single prompt, answered by the network of its set."""
    network: Any = routed.network(ROUTES[row])
    return network.generate(PROMPTS[row : row + 1], **{**GREEDY, **how}).tolist()


def test_several_sequences_per_prompt_come_in_the_order_of_the_prompts(routed: RoutedCausalLM) -> None:
    how: dict[str, Any] = {"num_beams": 3, "num_return_sequences": 2, "eos_token_id": 60}
    found = routed.generate(PROMPTS, routes=ROUTES, **{**GREEDY, **how})
    assert found.shape == (6, 11)
    assert found.tolist() == [sequence for row in range(3) for sequence in alone(routed, row, **how)]


def test_outputs_of_several_sets_cannot_be_joined(routed: RoutedCausalLM) -> None:
    with pytest.raises(ValueError, match="Expected prompts of one set with return_dict_in_generate=True, but got 2"):
        routed.generate(PROMPTS, routes=ROUTES, return_dict_in_generate=True, **GREEDY)


def test_shorter_answers_are_padded_with_the_token_that_was_asked_for(routed: RoutedCausalLM) -> None:
    first = alone(routed, 0)[0][5]  # the answers of the first set end at once
    found = routed.generate(PROMPTS[:2], routes=[0, 1], **{**GREEDY, "pad_token_id": 7, "eos_token_id": [first, 60]})
    assert found[0, 5:].tolist() == [first, 7, 7, 7, 7, 7]


def test_arguments_with_a_row_per_prompt_go_with_their_prompts(routed: RoutedCausalLM) -> None:
    positions = torch.arange(5).expand(3, 5) + torch.tensor([[0], [7], [1]])
    found = routed(PROMPTS, routes=ROUTES, position_ids=positions)
    for row in range(3):
        one = slice(row, row + 1)
        wanted = routed.network(ROUTES[row])(input_ids=PROMPTS[one], position_ids=positions[one]).logits[0]
        torch.testing.assert_close(found[row], wanted, atol=1e-5, rtol=1e-5)


def test_text_is_streamed(routed: RoutedCausalLM, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import TextStreamer

    routed.generate(PROMPTS[:1], streamer=TextStreamer(word_tokenizer()), **GREEDY)
    assert capsys.readouterr().out.startswith("w5 w6 w7 w8 w9 w")


# Precision, modes, copies and threads


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_model_and_router_change_precision_together(routed: RoutedCausalLM, dtype: torch.dtype) -> None:
    before = routed.network(2)
    routed.to(dtype)
    assert all(0 <= number < 4 for number in routed.route(PROMPTS))
    assert routed.network(2)(input_ids=PROMPTS).logits.dtype == dtype
    held = {id(tensor) for tensor in (*routed.model.parameters(), *routed.model.buffers())}
    assert all(id(b) in held for b in routed.network(2).buffers())  # those that a cast exchanges, too
    assert before.training is False


def test_sets_follow_weights_that_are_exchanged(routed: RoutedCausalLM) -> None:
    routed.generate(PROMPTS, routes=ROUTES, **GREEDY)
    zeros = {name: torch.zeros_like(value) for name, value in routed.state_dict().items()}
    routed.load_state_dict(zeros, assign=True)
    assert not routed(PROMPTS, routes=ROUTES).any()


def test_routes_do_not_depend_on_dropout(routed: RoutedCausalLM) -> None:
    ids = torch.randint(3, 60, (32, 7), generator=torch.Generator().manual_seed(0))
    wanted = routed.route(ids)
    routed.train()
    assert all(routed.route(ids) == wanted for _ in range(5))
    assert routed.router is not None
    assert routed.router.training  # type: ignore[attr-defined]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_weights_of_its_own_that_its_sets_share(routed: RoutedCausalLM, copied: Any) -> None:
    wanted = routed.generate(PROMPTS, **GREEDY)
    twin = copied(routed)
    held = {id(p) for p in twin.parameters()}
    assert not held & {id(p) for p in routed.parameters()}
    assert all(id(p) in held for number in range(4) for p in twin.network(number).parameters())
    assert torch.equal(twin.generate(PROMPTS, **GREEDY), wanted)


def test_threads_get_the_routes_of_their_own_prompts(routed: RoutedCausalLM, dense: nn.Module) -> None:
    ids = torch.randint(3, 60, (8, 7), generator=torch.Generator().manual_seed(0))
    wanted, logits, wrong = routed.route(ids), dense(input_ids=ids).logits, list[str]()

    def serve() -> None:
        for row in [*range(8)] * 3:
            try:
                wrong.extend(["route"] * (routed.route(ids[row : row + 1]) != wanted[row : row + 1]))
                wrong.extend(["dense"] * (not torch.equal(dense(input_ids=ids).logits, logits)))
            except BaseException as error:  # what stops a forward pass inside the package is no Exception
                wrong.append(repr(error))

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Bad input


@pytest.mark.parametrize("routes", [[0, 4, 0], [0, 1], ["set 0", "set 1", "set 0"], [0.5, 1.0, 0.0]])
def test_routes_that_are_none(routed: RoutedCausalLM, routes: Any) -> None:
    with pytest.raises(ValueError, match="Expected the number of a set, from 0 to 3, for each of 3 samples"):
        routed.generate(PROMPTS, routes=routes, **GREEDY)


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        (PROMPTS[0], None, r"Expected tokens of prompts, \(N, T\), .* but got shape \(5,\)"),
        (PROMPTS[:0], None, r"Expected tokens of prompts, \(N, T\), .* but got shape \(0, 5\)"),
        (PROMPTS, torch.ones(2, 5), r"Expected a mask of shape \(3, 5\), as the tokens have, but got \(2, 5\)"),
        (PROMPTS, torch.zeros(3, 5), "Expected prompts of one token or more, but number 0 is empty"),
    ],
)
@pytest.mark.parametrize("ask", ["route", "generate", "forward"])
def test_prompts_that_are_none(routed: RoutedCausalLM, ids: Any, mask: Any, message: str, ask: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(routed, ask)(ids, mask)


def test_prompts_that_are_no_tensor(routed: RoutedCausalLM) -> None:
    for ask in (routed.route, routed.generate, routed.forward):
        with pytest.raises(TypeError, match=r"Expected tokens of prompts as a tensor, \(N, T\), but got list"):
            ask(PROMPTS.tolist())


def test_a_router_for_a_model_of_another_width(dense: nn.Module) -> None:
    routed = RoutedCausalLM(dense, sets_of(dense), PrefixRouter(16, 4))
    with pytest.raises(ValueError, match="Expected features of 32 numbers, as of a model of width 16, but got 64"):
        routed.route(PROMPTS)


VALUES = torch.arange(3.0)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> HostMemory:
    """Return host memory for a simulated device: moved tensors count as on the device."""
    there: dict[int, int] = {}

    def holds(self: HostMemory, tensor: Tensor) -> bool:
        return there.setdefault(id(tensor), tensor.data_ptr()) != tensor.data_ptr()

    monkeypatch.setattr(HostMemory, "holds", holds)
    return HostMemory(torch.device("cpu"))


def test_unchanged_values_are_not_copied_back(memory: HostMemory) -> None:
    weight = nn.Parameter(VALUES.clone())
    before = weight.data_ptr()
    memory.to_device(weight)
    there = weight.data_ptr()
    memory.to_device(weight)
    assert weight.data_ptr() == there != before
    assert torch.equal(weight, VALUES)
    memory.back(weight)
    memory.back(weight)
    assert weight.data_ptr() == before


def test_changed_values_come_back(memory: HostMemory) -> None:
    weight, other = nn.Parameter(VALUES.clone()), nn.Parameter(VALUES.clone())
    for tensor in (weight, other):
        memory.to_device(tensor)
    with torch.no_grad():
        weight.mul_(2)
    other.data = VALUES + 1
    for tensor in (weight, other):
        memory.back(tensor)
    assert torch.equal(weight, 2 * VALUES)
    assert torch.equal(other, VALUES + 1)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_brings_its_own_tensors_back(memory: HostMemory, copied: object) -> None:
    weight = nn.Parameter(VALUES.clone())
    memory.to_device(weight)
    other, own = copied((memory, weight))  # type: ignore[operator]
    other.back(own)
    assert torch.equal(own, VALUES)
    assert own.data_ptr() != weight.data_ptr()


@pytest.mark.gpu
def test_values_wait_where_the_bus_reads_them_fastest() -> None:
    memory, weight = HostMemory(torch.device("cuda")), nn.Parameter(VALUES.clone())
    memory.to_device(weight)
    assert weight.is_cuda
    memory.back(weight)
    assert weight.is_pinned()
    assert torch.equal(weight, VALUES)
