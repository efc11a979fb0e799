"""Questions in the forms of the hub's data sets; right answers are scored in training, all in evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.language import llama_folder, tokenizer_of, word_tokenizer
from cases.models.questions import question_rows, write_rows

from prunerecover.language.likelihood import Encoding
from prunerecover.language.questions import question_of
from prunerecover.recipes.data.language.choice_data import ChoiceData

ROWS = question_rows(10)
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tokenizer_of(tmp_path_factory.mktemp("tokenizer")))


def opened(path: Path, tokenizer: str, stage: str = "fit", **kwargs: Any) -> ChoiceData:
    data = ChoiceData(str(path), tokenizer=tokenizer, **kwargs)
    data.prepare_data()
    data.setup(stage)
    return data


def answers_in(batch: dict[str, torch.Tensor]) -> list[tuple[list[int], list[int]]]:
    """All tokens of each row without padding, and those that are scored."""
    rows = zip(*(batch[name] for name in ("input_ids", "attention_mask", "labels")), strict=True)
    return [(ids[mask == 1].tolist(), labels[labels != -100].tolist()) for ids, mask, labels in rows]


def expected(row: dict[str, Any], number: int) -> tuple[list[int], list[int]]:
    before, after = Encoding(word_tokenizer()).with_answer(question_of(row).prompt, row["choices"][number])
    return [*before, *after], after


def test_a_training_batch_is_the_right_answers(tmp_path: Path, tokenizer: str) -> None:
    data = opened(write_rows(tmp_path / "a.jsonl", ROWS), tokenizer, batch_size=10)
    (batch,) = data.train_dataloader()
    assert batch.keys() == {"input_ids", "attention_mask", "labels"}
    assert sorted(answers_in(batch)) == sorted(expected(row, row["answer"]) for row in ROWS)


def test_evaluation_batches_hold_every_answer(tmp_path: Path, tokenizer: str) -> None:
    write_rows(tmp_path / "q" / "validation.jsonl", ROWS)
    batches = list(opened(tmp_path / "q", tokenizer, "validate", batch_size=4).val_dataloader())
    found = [answer for batch in batches for answer in answers_in(batch)]
    assert found == [expected(row, number) for row in ROWS for number in range(len(row["choices"]))]
    numbers = torch.cat([batch["question"] for batch in batches]).tolist()
    assert numbers == [number for number, row in enumerate(ROWS) for _ in row["choices"]]
    rights = torch.cat([batch["right"] for batch in batches]).tolist()
    assert rights == [number == row["answer"] for row in ROWS for number in range(len(row["choices"]))]
    characters = torch.cat([batch["characters"] for batch in batches]).tolist()
    assert characters == [len(choice) for row in ROWS for choice in row["choices"]]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_hub_forms_in_local_files(tmp_path: Path, tokenizer: str, kind: str) -> None:
    """Nested columns come back from parquet and jsonl as they were written."""
    import datasets

    form = {"question": "w5", "choices": {"text": ["w6", "w7 w8"], "label": ["A", "B"]}, "answerKey": "B"}
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        datasets.Dataset.from_list([form]).to_parquet(path)
    else:
        write_rows(path, [form])
    data = opened(path, tokenizer)
    (batch,) = data.train_dataloader()
    assert answers_in(batch)[0][1] == [7, 8]


def test_columns_are_named(tmp_path: Path, tokenizer: str) -> None:
    row = {"a": "w5", "b": ["w6", "w7"], "c": 1, "d": "w9"}
    names = {"question_column": "a", "choices_column": "b", "answer_column": "c", "passage_column": "d"}
    (batch,) = opened(write_rows(tmp_path / "a.jsonl", [row]), tokenizer, **names).train_dataloader()
    assert answers_in(batch)[0] == ([9, 0, 5, 0, 7], [7])  # 0: the words of the prompt's form, which it does not know


def test_a_fraction_is_of_questions(tmp_path: Path, tokenizer: str) -> None:
    data = opened(write_rows(tmp_path / "a.jsonl", ROWS), tokenizer, val_fraction=0.3)
    train, val = (data.datasets[role].questions for role in ("train", "val"))  # type: ignore[attr-defined]
    assert (len(train), len(val)) == (7, 3)
    assert not {str(question.rows) for question in train} & {str(question.rows) for question in val}


def test_a_chat_template_is_honoured(tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}w40 {{ m['content'] }} {% endfor %}w41 "
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    path = write_rows(tmp_path / "a.jsonl", [{"question": "w5", "choices": ["w6", "w7"], "answer": 0}])
    (batch,) = opened(path, str(tmp_path / "tokenizer"), chat=True).train_dataloader()
    assert answers_in(batch)[0] == ([40, 0, 5, 0, 41, 6], [6])


def test_no_special_tokens_are_needed(tmp_path: Path, tokenizer: str) -> None:
    loaded = word_tokenizer()
    assert loaded.pad_token is None
    assert loaded.eos_token is None
    write_rows(tmp_path / "q" / "test.jsonl", ROWS)
    (batch,) = opened(tmp_path / "q", tokenizer, "test", batch_size=10).test_dataloader()
    assert (batch["attention_mask"] == 0).any()


def test_a_template_that_is_not_there(tmp_path: Path, tokenizer: str) -> None:
    with pytest.raises(ValueError, match="Expected a tokenizer with a chat template"):
        opened(write_rows(tmp_path / "a.jsonl", ROWS), tokenizer, chat=True)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "w5", "choices": ["w6", ""], "answer": 0}, "Expected choices that are not empty.*row 1 of"),
        ({"question": "w5", "choices": ["w6"], "answer": 2}, "Expected the number of the right .*row 1 of the train"),
        ({"question": "w5 " * 70, "choices": ["w6"], "answer": 0}, "Expected a prompt and answer of 1 to 64 tokens"),
    ],
)
def test_rows_that_are_no_questions(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = write_rows(tmp_path / "a.jsonl", [ROWS[0], row])
    model = llama_folder(tmp_path / "llama")
    with pytest.raises(ValueError, match=message):
        ChoiceData(str(path), model=str(model)).setup("fit")


def test_missing_columns(tmp_path: Path, tokenizer: str) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text": "w5"}])
    with pytest.raises(ValueError, match="column for the question named .*, but the data has text. Set question_col"):
        opened(path, tokenizer)
