"""TextData opens each source alike, also by name, and packs a tokenizer's output as by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.language import documents, llama_folder, packed, tokenizer_of, write_jsonl

from prunerecover.recipes.data.language.text_data import TextData
from prunerecover.recipes.data.language.text_source import open_text

SIZES = [5, 9, 1, 12, 7, 3]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tokenizer_of(tmp_path_factory.mktemp("tokenizer"), eos_token="</s>"))


def opened(path: object, tokenizer: str, stage: str = "fit", **kwargs: Any) -> TextData:
    data = TextData(str(path), tokenizer=tokenizer, **{"length": 8, "batch_size": 2, **kwargs})
    data.prepare_data()
    data.setup(stage)
    return data


def tokens(data: TextData, role: str = "train") -> list[int]:
    rows: Any = data.datasets[role]
    return [token for index in range(len(rows)) for token in rows[index]["input_ids"].tolist()]


def test_documents_are_joined_by_eos_and_cut(tmp_path: Path, tokenizer: str) -> None:
    texts = documents(SIZES)
    data = opened(write_jsonl(tmp_path / "a.jsonl", texts), tokenizer)
    expected = packed(texts)
    assert tokens(data) == expected[: len(expected) // 8 * 8]


def test_labels_are_the_inputs(tmp_path: Path, tokenizer: str) -> None:
    data = opened(write_jsonl(tmp_path / "a.jsonl", documents(SIZES)), tokenizer)
    batch = next(iter(data.train_dataloader()))
    assert batch["input_ids"].shape == (2, 8)
    assert batch["input_ids"].dtype == torch.long
    assert torch.equal(batch["labels"], batch["input_ids"])


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "txt"])
def test_every_kind_of_file_gives_the_same_tokens(tmp_path: Path, tokenizer: str, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (text,) = documents([40])
    path = tmp_path / "text" / f"validation.{kind}"
    path.parent.mkdir()
    if kind == "parquet":
        pq.write_table(pa.table({"text": [text]}), path)
    elif kind == "txt":
        path.write_text(text)
    else:
        path.write_text(json.dumps({"text": text}))
    one = opened(path, tokenizer, "test", test_split="train")
    folder = opened(path.parent, tokenizer, "validate")
    assert tokens(one, "test") == tokens(folder, "val") == packed([text])[:40]


def test_lines_of_a_text_file_are_one_document(tmp_path: Path, tokenizer: str) -> None:
    texts = documents(SIZES)
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    assert tokens(opened(tmp_path / "a.txt", tokenizer)) == packed([" ".join(texts)])[:32]


def test_blank_documents_are_left_out(tmp_path: Path, tokenizer: str) -> None:
    texts = documents(SIZES)
    data = opened(write_jsonl(tmp_path / "a.jsonl", ["", *texts[:2], " \n", *texts[2:]]), tokenizer)
    assert tokens(data) == packed(texts)[:40]


def test_special_tokens_are_the_tokenizers_and_eos_comes_once(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

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


def test_a_separator_reads_rows_as_one_text(tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As perplexity on WikiText is reported: all rows, including blank ones, joined by blank lines."""
    texts = documents(SIZES)
    path = write_jsonl(tmp_path / "a.jsonl", [*texts[:2], "", *texts[2:]])
    expected = [token for token in packed(texts) if token != 2][:32]
    assert tokens(opened(path, tokenizer, separator="\n\n")) == expected
    monkeypatch.setattr("prunerecover.recipes.data.language.text_data.JOINED_ROWS", 2)
    assert tokens(opened(path, tokenizer, separator="\n\n")) == expected


def test_a_separator_stands_between_rows_and_parts(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prunerecover.recipes.data.language.text_data.JOINED_ROWS", 2)
    data = opened(write_jsonl(tmp_path / "a.jsonl", ["w5", "w6", "w7", "w8"]), tokenizer, separator=" w9 ", length=7)
    assert tokens(data) == [5, 9, 6, 9, 7, 9, 8]


def test_fraction_and_limit_draw_documents(tmp_path: Path, tokenizer: str) -> None:
    texts = documents([7] * 12)
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    data = opened(path, tokenizer, val_fraction=0.25, limit_train=4, seed=3)
    again = opened(path, tokenizer, val_fraction=0.25, limit_train=4, seed=3)
    train, val = ({tuple(row["input_ids"].tolist()) for row in data.datasets[role]} for role in ("train", "val"))
    assert (len(train), len(val)) == (4, 3)
    assert train | val <= {tuple(packed([text])) for text in texts}
    assert not train & val
    assert tokens(data) == tokens(again)


def test_the_models_tokenizer_is_the_default(tmp_path: Path, tokenizer: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", documents(SIZES))
    data = TextData(str(path), model=str(llama_folder(tmp_path / "llama")), length=8)
    data.setup("fit")
    assert tokens(data) == tokens(opened(path, tokenizer))


def test_the_column_is_named(tmp_path: Path, tokenizer: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", documents(SIZES), column="story")
    assert tokens(opened(path, tokenizer, text_column="story")) == packed(documents(SIZES))[:40]


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([""], {"text_column": "body"}, "column for the text named 'body', but the data has text. Set text_column"),
        ([3], {}, "Expected text in column 'text', but got int64. Set text_column"),
        (documents([2, 3]), {}, "Expected train text of at least one .* of 8 tokens in .*, but got 7 tokens in 2 rows"),
        ([" "], {}, "but got 0 tokens in 1 rows"),
        (["w5"], {"val_fraction": 0.1}, r"two or more rows in .* val_fraction=0.1 of them aside, but got 1"),
    ],
)
def test_texts_that_are_refused(
    tmp_path: Path, tokenizer: str, texts: list[Any], options: dict[str, Any], message: str
) -> None:
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


def test_length_of_one_token_is_an_error(tokenizer: str) -> None:
    with pytest.raises(ValueError, match="Expected a length of 2 or more tokens, .*, but got 1"):
        TextData("x/y", tokenizer=tokenizer, length=1)


def test_neither_model_nor_tokenizer_is_an_error(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", documents(SIZES))
    with pytest.raises(ValueError, match="Expected a model or a tokenizer, but got neither, and .* Set tokenizer to"):
        TextData(str(path)).setup("fit")


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("none", "Expected a model or tokenizer as transformers saves it at .*, but nothing"),
        ("text", "to be a folder as transformers saves it, or a hub id .* tokenizer"),
    ],
)
def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path, folder: str, message: str) -> None:
    path = write_jsonl(tmp_path / "text" / "a.jsonl", documents(SIZES))
    with pytest.raises(ValueError, match=message):
        opened(path, str(tmp_path / folder))


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        ([], "nowhere", "Expected data at .*, but nothing is there"),
        ([], "", "Expected parquet, jsonl, json or txt files of one kind in .*, but found"),
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
    """As in a copy of a repository of the hub."""
    for name in ("Easy", "Hard"):
        for split in ("train", "test"):
            write_jsonl(tmp_path / "repo" / name / f"{split}-00000-of-00001.jsonl", [f"{name} {split}"])
    assert texts(tmp_path / "repo", "Easy") == {"train": ["Easy train"], "test": ["Easy test"]}
    assert texts(tmp_path / "repo", None)["train"] == ["Easy train", "Hard train"]


def test_files_begin_with_the_name(tmp_path: Path) -> None:
    for file in ("arc.train", "arc.test-0", "arc.test-1", "arc_c.test", "arcade.train", "piqa.validation"):
        write_jsonl(tmp_path / "all" / f"{file}.jsonl", [file])
    assert texts(tmp_path / "all", "arc") == {"train": ["arc.train"], "test": ["arc.test-0", "arc.test-1"]}
    assert texts(tmp_path / "all", "piqa") == {"validation": ["piqa.validation"]}


def test_a_name_that_no_file_has_is_the_hubs(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "own" / "train.jsonl", ["mine"])
    assert texts(tmp_path / "own", "wikitext-2-raw-v1") == {"train": ["mine"]}
