from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.language import llama_folder, word_tokenizer
from cases.models.routed_language import SETS, sets_of
from cases.models.tiny import tiny_llama
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from prunerecover import apply_plan
from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.routed_folder import load_routed, save_routed
from prunerecover.routing.router import PrefixRouter

PROMPTS = torch.tensor([[5, 6, 7, 8, 9], [11, 12, 13, 14, 15], [21, 22, 23, 24, 25]])
GREEDY = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}


class ByFirstToken(nn.Module):
    """Picks the set whose number is the first token modulo 4."""

    n_sets = 4

    def features(self, model: nn.Module, prompts: Any, texts: Any) -> Tensor:
        return torch.tensor([[float(prompt[0])] for prompt in prompts])

    def forward(self, features: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(features[:, 0].long() % 4, 4).float()


@pytest.fixture
def dense() -> nn.Module:
    return tiny_llama(num_hidden_layers=6)


@pytest.fixture
def routed(dense: nn.Module) -> RoutedCausalLM:
    return RoutedCausalLM(dense, sets_of(dense), ByFirstToken()).eval()


def pruned(dense: nn.Module, number: int) -> Any:
    """The oracle: a copy of its own, pruned by plan."""
    twin = copy.deepcopy(dense)
    apply_plan(twin, sets_of(dense).plans[number])
    return twin


def test_prompts_of_one_batch_are_answered_by_their_own_sets(dense: nn.Module, routed: RoutedCausalLM) -> None:
    assert routed.route(PROMPTS) == [1, 3, 1]
    found = routed.generate(PROMPTS, **GREEDY)
    for row, number in zip(range(3), (1, 3, 1), strict=True):
        alone = pruned(dense, number).generate(PROMPTS[row : row + 1], **GREEDY)[0]
        assert found[row, : len(alone)].tolist() == alone.tolist()


def test_generation_with_a_cache_is_generation_without(routed: RoutedCausalLM) -> None:
    assert torch.equal(routed.generate(PROMPTS, **GREEDY), routed.generate(PROMPTS, use_cache=False, **GREEDY))


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


def test_the_dense_model_is_left_as_it_is(dense: nn.Module) -> None:
    before = dense(input_ids=PROMPTS).logits
    RoutedCausalLM(dense, sets_of(dense), ByFirstToken()).generate(PROMPTS, **GREEDY)
    assert torch.equal(dense(input_ids=PROMPTS).logits, before)


def test_without_a_router_the_default_set_answers(dense: nn.Module) -> None:
    routed = RoutedCausalLM(dense, sets_of(dense), default="set 2")
    assert routed.route(PROMPTS) == [2, 2, 2]
    off = RoutedCausalLM(dense, sets_of(dense), ByFirstToken(), default="set 2", routed=False)
    assert off.route(PROMPTS) == [2, 2, 2]


@pytest.mark.gpu
def test_only_the_blocks_of_a_set_are_on_the_device(dense: nn.Module) -> None:
    routed = RoutedCausalLM(dense, sets_of(dense), ByFirstToken(), device="cuda")
    for number, gone in enumerate(SETS):
        routed.generate(PROMPTS.cuda(), routes=[number] * 3, **GREEDY)
        layers = dense.model.layers  # type: ignore[union-attr]
        on_host = {i for i, layer in enumerate(layers) if next(layer.parameters()).device.type == "cpu"}
        assert on_host == set(gone)


# Folders


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return llama_folder(tmp_path / "base", num_hidden_layers=6)


def routed_folder(base: Path, path: Path) -> RoutedCausalLM:
    model = AutoModelForCausalLM.from_pretrained(base).eval()
    torch.manual_seed(0)
    routed = RoutedCausalLM(model, sets_of(model), PrefixRouter(32, 4).eval(), default="set 1")
    save_routed(routed, path)
    return routed


def test_a_folder_gives_the_same_answers(base: Path, tmp_path: Path) -> None:
    routed = routed_folder(base, tmp_path / "routed")
    again = load_routed(tmp_path / "routed")
    assert again.route(PROMPTS) == routed.route(PROMPTS)
    assert torch.equal(again.generate(PROMPTS, **GREEDY), routed.generate(PROMPTS, **GREEDY))
    assert again.sets == routed.sets
    assert again.default == 1
    assert sum(file.stat().st_size for file in (tmp_path / "routed").iterdir()) < 200_000  # no base weights


def test_switched_off_routing_stays_off(base: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(base)
    save_routed(RoutedCausalLM(model, sets_of(model), PrefixRouter(32, 4), routed=False), tmp_path / "routed")
    assert load_routed(tmp_path / "routed", model).route(PROMPTS) == [0, 0, 0]


def test_sets_edited_by_hand_are_refused(base: Path, tmp_path: Path) -> None:
    routed_folder(base, tmp_path / "routed")
    path = tmp_path / "routed" / "plan_set.json"
    data = json.loads(path.read_text())
    data["names"][0] = "other"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"Expected the sets that the router .* was trained for, but plan_set.json"):
        load_routed(tmp_path / "routed")


def test_a_base_of_another_depth_is_refused(base: Path, tmp_path: Path) -> None:
    routed_folder(base, tmp_path / "routed")
    with pytest.raises(ValueError, match="has other tensors. Was it pruned, or is it another depth"):
        load_routed(tmp_path / "routed", tiny_llama(num_hidden_layers=5))


def test_a_base_of_other_weights_is_refused(base: Path, tmp_path: Path) -> None:
    routed_folder(base, tmp_path / "routed")
    other = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        other.lm_head.weight.mul_(2)
    with pytest.raises(ValueError, match=r"Expected the weights that the sets .*save_routed\(..., weights=True"):
        load_routed(tmp_path / "routed", other)


def test_weights_that_were_trained_since_are_in_the_folder(base: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(base).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    routed = RoutedCausalLM(model, sets_of(model), default="set 1").eval()
    save_routed(routed, tmp_path / "routed", weights=True)
    (tmp_path / "routed").rename(tmp_path / "moved")
    again = load_routed(tmp_path / "moved")
    assert torch.equal(again(PROMPTS), routed(PROMPTS))


def test_weights_elsewhere_and_inside(routed: RoutedCausalLM, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected base or weights=True, but got both: weights are in the folder or"):
        save_routed(routed, tmp_path / "routed", base="somewhere", weights=True)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Expected a folder of a routed model"):
        load_routed(tmp_path)


def test_another_folder_is_not_overwritten(routed: RoutedCausalLM, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="Expected a free path, or a folder of a routed model"):
        save_routed(routed, tmp_path, base="somewhere")


def test_a_model_from_nowhere_needs_a_name(routed: RoutedCausalLM, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected base=..., the path or hub id of the dense model"):
        save_routed(routed, tmp_path / "routed")


# Bad input


def test_a_router_for_other_sets(dense: nn.Module) -> None:
    with pytest.raises(ValueError, match="Expected a router for 4 sets, but it was trained for 3"):
        RoutedCausalLM(dense, sets_of(dense), PrefixRouter(32, 3))


def test_sets_for_another_model(dense: nn.Module) -> None:
    with pytest.raises(ValueError, match="Expected"):
        RoutedCausalLM(tiny_llama(num_hidden_layers=5), sets_of(dense))


def test_a_prompt_beyond_the_context(routed: RoutedCausalLM) -> None:
    with pytest.raises(ValueError, match="Expected prompts of at most 64 tokens, the model's context, but got 65"):
        routed.route(torch.ones(1, 65, dtype=torch.long))


def test_routes_that_are_none(routed: RoutedCausalLM) -> None:
    with pytest.raises(ValueError, match="Expected the number of a set, from 0 to 3, for each of 3 samples"):
        routed.generate(PROMPTS, routes=[0, 4, 0], **GREEDY)


def test_a_conversation_for_each_prompt(routed: RoutedCausalLM) -> None:
    with pytest.raises(ValueError, match="Expected a conversation for each of 3 prompts, but got 1"):
        routed.generate(PROMPTS, conversations=["a"], **GREEDY)


def test_text_routers_get_text(dense: nn.Module) -> None:
    heard: list[str] = []

    class Reads(ByFirstToken):
        def features(self, model: nn.Module, prompts: Any, texts: Any) -> Tensor:
            heard.extend(texts)
            return super().features(model, prompts, texts)

    RoutedCausalLM(dense, sets_of(dense), Reads(), tokenizer=word_tokenizer()).route(PROMPTS)
    assert heard[0] == "w5 w6 w7 w8 w9"
