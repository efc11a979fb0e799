"""Folders of routed models: the same answers from the same weights, and clear errors for damaged or foreign folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.engine import equal
from cases.models.language import llama_folder, word_tokenizer
from cases.models.routed_language import GREEDY, PROMPTS, sets_of
from cases.models.tiny import tiny_bert, tiny_llama
from transformers import AutoModelForCausalLM

from prunerecover.files.hashes import sha256_of
from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.routed_folder import load_routed, save_routed
from prunerecover.routing.router import EncoderRouter, PrefixRouter


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("dense") / "base", num_hidden_layers=6)


def opened(base: Path, **how: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(base, **how).eval()


def routed_by(model: Any, router: Any = None, **how: Any) -> RoutedCausalLM:
    return RoutedCausalLM(model, sets_of(model), router, **how).eval()


@pytest.fixture(scope="module")
def routed(base: Path) -> Any:
    torch.manual_seed(0)
    return routed_by(opened(base), PrefixRouter(32, 4), default="set 1")


@pytest.fixture(scope="module")
def saved(routed: RoutedCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_routed(routed, tmp_path_factory.mktemp("saved") / "routed")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all parts of a routed model."""
    folder = tmp_path_factory.mktemp("whole")
    tiny_bert().save_pretrained(folder / "bert")  # type: ignore[operator]
    word_tokenizer(pad_token="<pad>").save_pretrained(folder / "bert")
    torch.manual_seed(0)
    router = EncoderRouter(str(folder / "bert"), 4)
    routed = routed_by(tiny_llama(num_hidden_layers=6), router, tokenizer=word_tokenizer())
    (folder / "routes.json").write_text(json.dumps(routed.route(PROMPTS)))
    return save_routed(routed, folder / "routed", weights=True)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "routed"))


def edit(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def test_a_folder_gives_the_same_answers(routed: Any, saved: Path) -> None:
    again: Any = load_routed(saved)
    assert again.route(PROMPTS) == routed.route(PROMPTS)
    assert equal(dict(again.router.named_parameters()), dict(routed.router.named_parameters()))
    assert torch.equal(again.generate(PROMPTS, **GREEDY), routed.generate(PROMPTS, **GREEDY))
    assert again.sets == routed.sets
    assert again.default == 1
    assert sum(file.stat().st_size for file in saved.iterdir()) < 200_000  # no base weights


def test_a_text_router_brings_the_tokenizer_along(whole: Path) -> None:
    assert load_routed(whole).route(PROMPTS) == json.loads((whole.parent / "routes.json").read_text())


def test_weights_that_were_trained_since_are_in_the_folder(base: Path, tmp_path: Path) -> None:
    model = opened(base)
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    routed = routed_by(model, default="set 1")
    save_routed(routed, tmp_path / "routed", weights=True).rename(tmp_path / "moved")
    assert torch.equal(load_routed(tmp_path / "moved")(PROMPTS), routed(PROMPTS))


def test_what_the_folder_says_can_be_told_otherwise(base: Path, tmp_path: Path) -> None:
    model = opened(base)
    save_routed(routed_by(model, PrefixRouter(32, 4), routed=False), tmp_path / "routed")
    told = load_routed(tmp_path / "routed", model, routed=True, default="set 2")
    assert told.routed
    assert told.default == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_base_may_have_another_precision(base: Path, saved: Path, dtype: torch.dtype) -> None:
    assert load_routed(saved, opened(base, dtype=dtype)).generate(PROMPTS, **GREEDY).shape == (3, 11)


def test_another_base_is_refused(base: Path, saved: Path) -> None:
    with pytest.raises(ValueError, match="has other tensors. Was it pruned, or is it another depth"):
        load_routed(saved, tiny_llama(num_hidden_layers=5))
    other = opened(base, dtype=torch.float16)
    with torch.no_grad():
        other.lm_head.weight.mul_(2)
    with pytest.raises(ValueError, match=r"Expected the weights that the sets .*save_routed\(..., weights=True"):
        load_routed(saved, other)


def test_a_base_that_was_moved(base: Path, routed: RoutedCausalLM, tmp_path: Path) -> None:
    path = save_routed(routed, tmp_path / "routed", base=str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError, match=r"Expected the dense .* open it yourself .*load_routed\(path, mod"):
        load_routed(path)
    assert load_routed(path, opened(base)).route(PROMPTS) == routed.route(PROMPTS)


def test_what_cannot_be_saved_or_opened(tmp_path: Path) -> None:
    routed = routed_by(tiny_llama(num_hidden_layers=6))
    with pytest.raises(ValueError, match="Expected base or weights=True, but got both: weights are in the folder or"):
        save_routed(routed, tmp_path / "routed", base="somewhere", weights=True)
    with pytest.raises(ValueError, match="Expected base=..., the path or hub id of the dense model"):
        save_routed(routed, tmp_path / "routed")
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="Expected a free path, or a folder of a routed model"):
        save_routed(routed, tmp_path, base="somewhere")
    with pytest.raises(FileNotFoundError, match="Expected a folder of a routed model"):
        load_routed(tmp_path)


def test_what_interrupts_saving_leaves_the_folder_as_it_was(
    routed: RoutedCausalLM, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    path = Path(shutil.copytree(saved, tmp_path / "routed"))
    monkeypatch.setattr(PrefixRouter, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_routed(routed, path)
    assert load_routed(path).route(PROMPTS) == routed.route(PROMPTS)
    assert [each.name for each in tmp_path.iterdir()] == ["routed"]


# Damaged or foreign folders: nothing is executed


MAGIC = {"kind": "magic", "settings": {}, "weights": ""}


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("routing", lambda data: data.update(sets=None), "Expected a routed model .* but sets is wrong"),
        ("routing", lambda data: data.update(base=3), "Expected a routed model .* but base is wrong"),
        ("routing", lambda data: data.update(routed="perhaps"), "Expected a routed model .* but routed is wrong"),
        ("routing", lambda data: data.update(luck=3), "Expected a routed model .* but luck is wrong"),
        ("routing", lambda data: data.update(default="set 9"), "Expected one of the sets set 0, .* but got 'set 9'"),
        ("routing", lambda data: data.update(router=MAGIC), "but router.kind is wrong"),
        ("routing", lambda data: data.update(schema="a/9"), "Expected a routed model of schema prunerecover.routed/1"),
        (
            "routing",
            lambda data: data["router"]["settings"].update(hidden=9),
            "Expected a router of .* cannot be opened .RuntimeError: .*size mismatch",
        ),
        (
            "routing",
            lambda data: data["router"]["settings"].update(n_sets=10**9),
            "Expected a router for 4 sets .* but got one of .*1000000000",
        ),
        (
            "plan_set",
            lambda data: data.update(names=["other", *data["names"][1:]]),
            "Expected the sets that the router .* was trained for, but plan_set.json",
        ),
    ],
)
def test_folders_edited_by_hand(
    saved: Path, tmp_path: Path, file: str, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    path = Path(shutil.copytree(saved, tmp_path / "routed"))
    edit(path / f"{file}.json", change)
    with pytest.raises(ValueError, match=message):
        load_routed(path)


FILES = ("model/model.safetensors", "model/config.json", "encoder/model.safetensors", "tokenizer/tokenizer.json")


@pytest.mark.parametrize(
    ("name", "wrong"), [*((name, "has another sha256") for name in FILES), ("router.safetensors", "is another")]
)
def test_a_turned_bit_and_a_missing_file_are_found(name: str, wrong: str, folder: Path) -> None:
    content = bytearray((folder / name).read_bytes())
    content[-9] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"Expected .*but {name} {wrong}"):
        load_routed(folder)
    (folder / name).unlink()
    message = f"Expected .*({name} is not there|cannot be opened|the router's weights in {name})"
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_routed(folder)


WRONG = {
    "model/config.json": b"{}",
    "model/model.safetensors": b"\x00" * 99,
    "tokenizer/tokenizer.json": b'{"model": 3}',
    "encoder/config.json": b'{"model_type": "none"}',
    "encoder/tokenizer.json": b"[[",
    "router.safetensors": b"no tensors",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_others_raise_is_explained(name: str, folder: Path) -> None:
    """In a folder of somebody who knows the checksums, or of before there were any."""
    (folder / name).write_bytes(WRONG[name])
    edit(folder / "routing.json", lambda data: data.update(files={}))
    edit(
        folder / "routing.json",
        lambda data: data["router"].update(weights=sha256_of(folder / "router.safetensors")),
    )
    with pytest.raises((ValueError, FileNotFoundError), match=r"Expected (.|\n)* cannot be opened .* pass it: "):
        load_routed(folder)


def test_code_in_a_folder_is_neither_executed_nor_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    (folder / "model" / "own.py").write_text(f"open({str(folder / 'executed')!r}, 'w')")
    edit(folder / "routing.json", lambda data: data.update(files={}))
    monkeypatch.setattr("builtins.input", lambda _: "y")
    with pytest.raises(ValueError, match="Expected the dense .* no code in a folder is executed.* open it yourself"):
        load_routed(folder)
    assert not (folder / "executed").exists()


def test_nothing_is_fetched_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(num_hidden_layers=6)
    routed = RoutedCausalLM(model, sets_of(model))
    save_routed(routed, tmp_path / "routed", base="somebody/model")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    asked: list[object] = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *names, **_: asked.append(names))
    with pytest.raises(FileNotFoundError, match="at somebody/model, but .* Nothing is fetched from the hub"):
        load_routed(tmp_path / "routed")
    cached = tmp_path / "models--somebody--model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    model.save_pretrained(cached / "snapshots" / ("0" * 40))
    assert torch.equal(load_routed(tmp_path / "routed")(PROMPTS), routed(PROMPTS))
    assert not asked
