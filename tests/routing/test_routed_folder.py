from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.language import llama_folder, word_tokenizer
from cases.models.routed_language import GREEDY, PROMPTS, sets_of
from cases.models.tiny import tiny_bert, tiny_llama
from transformers import AutoModelForCausalLM

from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.routed_folder import load_routed, save_routed
from prunerecover.routing.router import EncoderRouter, PrefixRouter


def unsaved() -> RoutedCausalLM:
    model = tiny_llama(num_hidden_layers=6)
    return RoutedCausalLM(model, sets_of(model))


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


@pytest.mark.parametrize("dtype", [torch.float16])
def test_a_base_of_other_weights_is_refused(base: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    routed_folder(base, tmp_path / "routed")
    other = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
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


def test_weights_elsewhere_and_inside(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected base or weights=True, but got both: weights are in the folder or"):
        save_routed(unsaved(), tmp_path / "routed", base="somewhere", weights=True)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Expected a folder of a routed model"):
        load_routed(tmp_path)


def test_another_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="Expected a free path, or a folder of a routed model"):
        save_routed(unsaved(), tmp_path, base="somewhere")


def test_a_model_from_nowhere_needs_a_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected base=..., the path or hub id of the dense model"):
        save_routed(unsaved(), tmp_path / "routed")


def test_what_the_folder_says_can_be_told_otherwise(base: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(base)
    save_routed(RoutedCausalLM(model, sets_of(model), PrefixRouter(32, 4), routed=False), tmp_path / "routed")
    told = load_routed(tmp_path / "routed", model, routed=True, default="set 2")
    assert told.routed
    assert told.default == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_base_may_have_another_precision(base: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    routed_folder(base, tmp_path / "routed")
    again = load_routed(tmp_path / "routed", AutoModelForCausalLM.from_pretrained(base, dtype=dtype))
    assert again.generate(PROMPTS, **GREEDY).shape == (3, 11)


def test_a_text_router_brings_the_tokenizer_along(base: Path, tmp_path: Path) -> None:
    encoder = tmp_path / "bert"
    tiny_bert().save_pretrained(encoder)  # type: ignore[operator]
    word_tokenizer(pad_token="<pad>").save_pretrained(encoder)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base)
    router = EncoderRouter(str(encoder), 4)
    routed = RoutedCausalLM(model, sets_of(model), router.eval(), tokenizer=word_tokenizer())
    save_routed(routed, tmp_path / "routed")
    assert load_routed(tmp_path / "routed", model).route(PROMPTS) == routed.route(PROMPTS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sets": None}, "Expected a routed model .* but sets is wrong"),
        ({"base": 3}, "Expected a routed model .* but base is wrong"),
        ({"routed": "perhaps"}, "Expected a routed model .* but routed is wrong"),
        ({"luck": 3}, "Expected a routed model .* but luck is wrong"),
        ({"default": "set 9"}, "Expected one of the sets set 0, .* but got 'set 9'"),
        ({"router": {"kind": "magic", "settings": {}, "weights": ""}}, "but router.kind is wrong"),
        ({"schema": "prunerecover.routed/9"}, "Expected a routed model of schema prunerecover.routed/1"),
    ],
)
def test_folders_edited_by_hand(base: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    routed_folder(base, tmp_path / "routed")
    path = tmp_path / "routed" / "routing.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ValueError, match=message):
        load_routed(tmp_path / "routed")


def test_settings_of_the_router_edited_by_hand(base: Path, tmp_path: Path) -> None:
    routed_folder(base, tmp_path / "routed")
    path = tmp_path / "routed" / "routing.json"
    data = json.loads(path.read_text())
    data["router"]["settings"]["hidden"] = 9
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="Expected a router of .* cannot be opened .RuntimeError: .*size mismatch"):
        load_routed(tmp_path / "routed")


def test_a_router_that_was_trained_for_other_sets(base: Path, tmp_path: Path) -> None:
    routed_folder(base, tmp_path / "routed")
    PrefixRouter(32, 4).save(tmp_path / "routed")
    with pytest.raises(ValueError, match=r"Expected the router that was saved .* but router.safetensors is another"):
        load_routed(tmp_path / "routed")


def test_no_router(base: Path, tmp_path: Path) -> None:
    routed_folder(base, tmp_path / "routed")
    (tmp_path / "routed" / "router.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"Expected the router's weights in router.safetensors"):
        load_routed(tmp_path / "routed")


def test_a_base_that_was_moved(base: Path, tmp_path: Path) -> None:
    routed = routed_folder(base, tmp_path / "routed")
    base.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match=r"Expected the dense .* open it yourself .*load_routed\(path, mod"):
        load_routed(tmp_path / "routed")
    again = load_routed(tmp_path / "routed", AutoModelForCausalLM.from_pretrained(tmp_path / "moved"))
    assert again.route(PROMPTS) == routed.route(PROMPTS)


def test_what_interrupts_saving_leaves_the_folder_as_it_was(base: Path, tmp_path: Path) -> None:
    routed = routed_folder(base, tmp_path / "routed")
    wanted, router = routed.route(PROMPTS), routed.router
    assert isinstance(router, PrefixRouter)

    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    router.save = interrupt  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        save_routed(routed, tmp_path / "routed")
    assert load_routed(tmp_path / "routed").route(PROMPTS) == wanted
    assert {path.name for path in tmp_path.iterdir()} == {"base", "routed"}
