"""InstructionData reads instructions and chats, and pads and cuts their tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.language import llama_folder, tokenizer_of, word_tokenizer
from cases.models.questions import write_rows

from prunerecover.language.responses import chat_row, instruction_messages, instruction_row
from prunerecover.recipes.data.language.instruction_data import InstructionData

TEMPLATE = "{% for m in messages %}{{ 'w40 ' if m['role'] == 'user' else 'w41 ' }}{{ m['content'] }} {% endfor %}"
ROWS = [{"instruction": f"w{3 + i}", "input": "w9" * (i % 2), "output": "w12 " * (1 + i)} for i in range(8)]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tokenizer_of(tmp_path_factory.mktemp("plain"), eos_token="</s>"))


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokenizer = word_tokenizer(eos_token="</s>")
    tokenizer.chat_template = TEMPLATE
    folder = tmp_path_factory.mktemp("chatting")
    tokenizer.save_pretrained(folder)
    return str(folder)


def opened(path: Path, tokenizer: str, **kwargs: Any) -> InstructionData:
    data = InstructionData(str(path), tokenizer=tokenizer, **kwargs)
    data.prepare_data()
    data.setup("fit")
    return data


def rows_of(data: InstructionData, role: str = "train") -> list[tuple[list[int], list[int]]]:
    return list(data.datasets[role].rows)


def test_instructions_stand_under_headings_or_in_a_chat_template(tmp_path: Path, plain: str, chatting: str) -> None:
    tokenizer, path = word_tokenizer(eos_token="</s>"), write_rows(tmp_path / "a.jsonl", ROWS)
    under_headings = [instruction_row(row["instruction"], row["input"], row["output"], tokenizer) for row in ROWS]
    assert rows_of(opened(path, plain)) == rows_of(opened(path, chatting, chat=False)) == under_headings
    tokenizer.chat_template = TEMPLATE
    chats = [instruction_messages(row["instruction"], row["input"], row["output"]) for row in ROWS]
    as_chats = [chat_row(messages, tokenizer) for messages in chats]
    assert rows_of(opened(path, chatting)) == as_chats
    path = write_rows(tmp_path / "b.jsonl", [{"messages": messages} for messages in chats])
    assert rows_of(opened(path, chatting)) == as_chats


def test_columns_by_name(tmp_path: Path, plain: str) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"a": "w5", "b": "w6", "c": "w7", "messages": "no chat"}])
    names = {"instruction_column": "a", "input_column": "b", "output_column": "c"}
    (row,) = rows_of(opened(path, plain, **names))
    assert row == instruction_row("w5", "w6", "w7", word_tokenizer(eos_token="</s>"))
    talk = {"talk": instruction_messages("w5", "", "w6"), "instruction": "w5", "output": "w6"}
    chats = write_rows(tmp_path / "b.jsonl", [talk])
    with pytest.raises(ValueError, match="Expected a tokenizer with a chat template.*row 0 of the train data"):
        opened(chats, plain, messages_column="talk")


def test_batches_are_padded_to_the_longest(tmp_path: Path, plain: str) -> None:
    data = opened(write_rows(tmp_path / "a.jsonl", ROWS), plain, batch_size=8)
    (batch,) = data.train_dataloader()
    longest = max(len(ids) for ids, _ in rows_of(data))
    assert batch.keys() == {"input_ids", "attention_mask", "labels"}
    assert all(tensor.shape == (8, longest) for tensor in batch.values())
    scored = (batch["labels"] != -100).sum()
    assert scored == sum(len(row["output"].split()) + 1 for row in ROWS)
    assert torch.equal((batch["labels"] != -100) & (batch["attention_mask"] == 0), torch.zeros(8, longest).bool())


def test_a_warning_counts_what_is_cut(tmp_path: Path, plain: str) -> None:
    rows = [*ROWS, {"instruction": "w5 " * 20, "input": "", "output": "w6"}]
    lengths = [len(ids) for ids, _ in rows_of(opened(write_rows(tmp_path / "b.jsonl", rows), plain))]
    longer = sum(length > 10 for length in lengths)
    match = f"{longer} of 9 train samples in .* 10 tokens: {longer - 1} are cut, and 1 left"
    with pytest.warns(UserWarning, match=match):
        data = opened(write_rows(tmp_path / "a.jsonl", rows), plain, length=10)
    assert [len(ids) for ids, _ in rows_of(data)] == [min(length, 10) for length in lengths[:-1]]


def test_no_response_is_left(tmp_path: Path, plain: str) -> None:
    with pytest.raises(ValueError, match="Expected train samples of which a response is left within 4 tokens .* of 8"):
        opened(write_rows(tmp_path / "a.jsonl", ROWS), plain, length=4)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "w5"}, "column for the instruction named instruction or prompt .*has text. Set instruction_column"),
        ({"instruction": "w5"}, "column for the output named output or .*has instruction. Set output_column"),
        ({"instruction": "w5", "output": ""}, "Expected text as the response, but got ''.*row 0 of the train data in"),
        ({"instruction": "w5", "output": None}, "Expected text as the response, but got None"),
        ({"messages": [{"role": "user", "content": "w5"}]}, "Expected a tokenizer with a chat template"),
    ],
)
def test_rows_that_are_refused(tmp_path: Path, plain: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        opened(write_rows(tmp_path / "a.jsonl", [row]), plain)


def test_a_length_beyond_the_context(tmp_path: Path) -> None:
    path, model = write_rows(tmp_path / "a.jsonl", ROWS), llama_folder(tmp_path / "llama")
    with pytest.raises(ValueError, match="Expected a length of at most 64 tokens, the context of .*, but got 65"):
        InstructionData(str(path), model=str(model), length=65).setup("fit")
