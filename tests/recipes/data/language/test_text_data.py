"""TextData opens each source alike, also by name, and packs a tokenizer's output as by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cases.models.language import documents, llama_folder, packed, tokenizer_of, write_jsonl
from transformers import AutoTokenizer

from prunerecover.recipes.data.language.language_data import open_text
from prunerecover.recipes.data.language.text_data import TextData

SIZES = [5, 9, 1, 12, 7, 3]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tokenizer_of(tmp_path_factory.mktemp("tokenizer"), eos_token="</s>"))


def opened(path: object, tokenizer: str | None, stage: str = "fit", **kwargs: Any) -> TextData:
    data = TextData(str(path), tokenizer=tokenizer, **{"length": 8, "batch_size": 2, **kwargs})
    data.prepare_data()
    data.setup(stage)
    return data


def tokens(data: TextData, role: str = "train") -> list[int]:
    rows: Any = data.datasets[role]
    return [token for index in range(len(rows)) for token in rows[index]["input_ids"].tolist()]


def test_documents_are_joined_by_eos_and_cut(tmp_path: Path, tokenizer: str) -> None:
    """Blank ones are left out; labels are the inputs."""
    texts = documents(SIZES)
    path = write_jsonl(tmp_path / "a.jsonl", ["", *texts[:2], " \n", *texts[2:]], column="story")
    data = opened(path, tokenizer, text_column="story")
    assert tokens(data) == packed(texts)[:40]
    batch = next(iter(data.train_dataloader()))
    assert batch["input_ids"].shape == (2, 8)
    assert batch["input_ids"].dtype == torch.long
    assert torch.equal(batch["labels"], batch["input_ids"])


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "txt"])
def test_every_kind_of_file_gives_the_same_tokens(tmp_path: Path, tokenizer: str, kind: str) -> None:
    """A text file is one document, with all its lines."""
    (text,) = documents([40])
    path = tmp_path / "text" / f"validation.{kind}"
    path.parent.mkdir()
    if kind == "parquet":
        pq.write_table(pa.table({"text": [text]}), path)
    else:
        path.write_text(text.replace(" ", "\n\n") if kind == "txt" else json.dumps({"text": text}))
    one = opened(path, tokenizer, "test", test_split="train")
    folder = opened(path.parent, tokenizer, "validate")
    assert tokens(one, "test") == tokens(folder, "val") == packed([text])[:40]


def test_special_tokens_are_the_tokenizers_and_eos_comes_once(tmp_path: Path) -> None:
    folder = tokenizer_of(tmp_path / "tokenizer", eos_token="</s>", bos_token="<s>")
    stored = json.loads((folder / "tokenizer.json").read_text())
    special = {name: {"id": name, "ids": [token], "tokens": [name]} for name, token in (("<s>", 1), ("</s>", 2))}
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    single += [{"SpecialToken": {"id": "</s>", "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    stored["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    assert AutoTokenizer.from_pretrained(folder)("w5")["input_ids"] == [1, 5, 2]
    data = opened(write_jsonl(tmp_path / "a.jsonl", ["w5 w6", "w7", "w8"]), str(folder), length=5)
    assert tokens(data) == [1, 5, 6, 2, 1, 7, 2, 1, 8, 2]


@pytest.mark.parametrize("at_once", [2, 10_000])
def test_a_separator_joins_rows(tmp_path: Path, tokenizer: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As perplexity on WikiText is reported: all rows, including blank ones, joined by blank lines."""
    monkeypatch.setattr("prunerecover.recipes.data.language.text_data.JOINED_ROWS", at_once)
    path = write_jsonl(tmp_path / "a.jsonl", ["w5", "", "w6", "w7", "w8"])
    assert tokens(opened(path, tokenizer, separator=" w9 ")) == [5, 9, 9, 6, 9, 7, 9, 8]


def test_the_models_tokenizer_is_the_default(tmp_path: Path, tokenizer: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", documents(SIZES))
    data = opened(path, None, model=str(llama_folder(tmp_path / "llama")))
    assert tokens(data) == tokens(opened(path, tokenizer))


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([""], {"text_column": "body"}, "column for the text named 'body', but the data has text. Set text_column"),
        ([3], {}, "Expected text in column 'text', but got int64. Set text_column"),
        (documents([2, 3]), {}, "Expected train text of at least one .* of 8 tokens in .*, but got 7 tokens in 2 rows"),
        ([" "], {}, "but got 0 tokens in 1 rows"),
        (["w5"], {"val_fraction": 0.1}, r"two or more rows in .* val_fraction=0.1 of them aside, but got 1"),
        ([""], {"length": 1}, "Expected a length of 2 or more tokens, .*, but got 1"),
    ],
)
def test_texts_that_are_refused(tmp_path: Path, tokenizer: str, texts: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        opened(write_jsonl(tmp_path / "a.jsonl", texts), tokenizer, **options)


def test_tokenizer_without_eos_is_an_error(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", documents(SIZES))
    tokenizer = str(tokenizer_of(tmp_path / "tokenizer"))
    with pytest.raises(ValueError, match=r"Expected a tokenizer with an end-of-text token, .* has no eos_token"):
        opened(path, tokenizer)
    assert tokens(opened(path, tokenizer, separator=" "))


def test_length_beyond_the_models_or_tokenizers_context_is_an_error(tmp_path: Path) -> None:
    path, model = write_jsonl(tmp_path / "a.jsonl", documents([200])), llama_folder(tmp_path / "llama")
    tokenizer = tokenizer_of(tmp_path / "tokenizer", eos_token="</s>", model_max_length=32)
    for name, folder, most in (("model", model, 64), ("tokenizer", tokenizer, 32)):
        message = f"Expected a length of at most {most} tokens, the context of .*, but got {most + 1}"
        with pytest.raises(ValueError, match=message):
            TextData(str(path), **{name: str(folder)}, length=most + 1).setup("fit")
        TextData(str(path), **{name: str(folder)}, length=most).setup("fit")


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("none", "Expected a model or tokenizer as transformers saves it at .*, but nothing"),
        ("text", "to be a folder as transformers saves it, or a hub id .* tokenizer"),
        (None, "Expected a model or a tokenizer, but got neither, and .* Set tokenizer to"),
    ],
)
def test_a_tokenizer_that_is_not_there_is_an_error(tmp_path: Path, folder: str | None, message: str) -> None:
    path = write_jsonl(tmp_path / "text" / "a.jsonl", documents(SIZES))
    with pytest.raises(ValueError, match=message):
        opened(path, folder and str(tmp_path / folder))


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        ([], "nowhere", "Expected data at .*, but nothing is there"),
        ([], "", "Expected parquet, jsonl, json or txt files of one kind in .*, but found none"),
        (["train.jsonl", "notes.txt"], "", r"but found files of several kinds \(json, text\)"),
        (["a.pdf"], "a.pdf", "Expected a parquet, jsonl, json or txt file, but got .*a.pdf"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, tokenizer: str, files: list[str], path: str, message: str) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in files:
        (folder / name).write_text('{"text": "w5"}')
    with pytest.raises(ValueError, match=message):
        opened(folder / path, tokenizer)


def texts(path: Path, name: str | None) -> dict[str, list[str]]:
    return {split: sorted(rows["text"]) for split, rows in open_text(str(path), name).items()}


def test_a_subfolder_is_a_configuration(tmp_path: Path) -> None:
    """As in a copy of a repository of the hub; a name that no file or folder has is the hub's."""
    for name in ("Easy", "Hard"):
        for split in ("train", "test"):
            write_jsonl(tmp_path / "repo" / name / f"{split}-00000-of-00001.jsonl", [f"{name} {split}"])
    assert texts(tmp_path / "repo", "Easy") == {"train": ["Easy train"], "test": ["Easy test"]}
    for name in (None, "wikitext-2-raw-v1"):
        assert texts(tmp_path / "repo", name)["train"] == ["Easy train", "Hard train"]


def test_files_begin_with_the_name(tmp_path: Path) -> None:
    for file in ("arc.train", "arc.test-0", "arc.test-1", "arc_c.test", "arcade.train", "piqa.validation"):
        write_jsonl(tmp_path / "all" / f"{file}.jsonl", [file])
    assert texts(tmp_path / "all", "arc") == {"train": ["arc.train"], "test": ["arc.test-0", "arc.test-1"]}
    assert texts(tmp_path / "all", "piqa") == {"validation": ["piqa.validation"]}
