"""Damaged or foreign folders of routed models: a single clear error, and nothing is executed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.language import word_tokenizer
from cases.models.routed_language import sets_of
from cases.models.tiny import tiny_bert, tiny_llama

from prunerecover.files.hashes import sha256_of
from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.routed_folder import load_routed, save_routed
from prunerecover.routing.router import EncoderRouter

PROMPTS = torch.tensor([[5, 6, 7, 8, 9], [11, 12, 13, 14, 15]])


def said(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a folder's record."""
    data = json.loads((folder / "routing.json").read_text())
    change(data)
    (folder / "routing.json").write_text(json.dumps(data))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all parts of a routed model."""
    folder = tmp_path_factory.mktemp("whole")
    tiny_bert().save_pretrained(folder / "bert")  # type: ignore[operator]
    word_tokenizer(pad_token="<pad>").save_pretrained(folder / "bert")
    model = tiny_llama(num_hidden_layers=6)
    router = EncoderRouter(str(folder / "bert"), 4).eval()
    routed = RoutedCausalLM(model, sets_of(model), router, tokenizer=word_tokenizer())
    return save_routed(routed, folder / "routed", weights=True)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "routed"))


FILES = ("model/model.safetensors", "model/config.json", "encoder/model.safetensors", "tokenizer/tokenizer.json")


@pytest.mark.parametrize("name", FILES)
def test_a_turned_bit_is_found(name: str, folder: Path) -> None:
    content = bytearray((folder / name).read_bytes())
    content[-9] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"Expected .*(but {name} has another sha256|cannot be opened)"):
        load_routed(folder)
    (folder / name).unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=f"Expected .*({name} is not there|cannot be opened)"):
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
    said(folder, lambda data: data.update(files={}))
    said(folder, lambda data: data["router"].update(weights=sha256_of(folder / "router.safetensors")))
    with pytest.raises((ValueError, FileNotFoundError), match=r"Expected (.|\n)* cannot be opened .* pass it: "):
        load_routed(folder)


def test_a_router_for_another_number_of_sets(folder: Path) -> None:
    said(folder, lambda data: data["router"]["settings"].update(n_sets=10**9))
    with pytest.raises(ValueError, match="Expected a router for 4 sets .* but got one of .*1000000000"):
        load_routed(folder)


def test_code_in_a_folder_is_neither_executed_nor_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    (folder / "model" / "own.py").write_text(f"open({str(folder / 'executed')!r}, 'w')")
    said(folder, lambda data: data.update(files={}))
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
