"""Questions in the forms of the hub's data sets; right answers are scored in training, all in evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from cases.models.language import llama_folder, tokenizer_of, word_tokenizer
from cases.models.questions import question_rows, write_rows

from prunerecover.language.likelihood import Encoding
from prunerecover.language.questions import Question, question_of
from prunerecover.recipes.data.language.choice_data import ChoiceData, find_choice_columns

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
    """Return the tokens of each row without padding, and the scored ones."""
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


def test_columns_are_named(tmp_path: Path, tokenizer: str) -> None:
    row = {"a": "w5", "b": ["w6", "w7"], "c": 1, "d": "w9", "question": "w50", "answer": 5}
    names = {"question_column": "a", "choices_column": "b", "answer_column": "c", "passage_column": "d"}
    (batch,) = opened(write_rows(tmp_path / "a.jsonl", [row]), tokenizer, **names).train_dataloader()
    assert answers_in(batch)[0] == ([9, 0, 5, 0, 7], [7])  # 0: the words of the prompt's form, which it does not know


def test_a_chat_template_is_honoured(tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}w40 {{ m['content'] }} {% endfor %}w41 "
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    path = write_rows(tmp_path / "a.jsonl", [{"question": "w5", "choices": ["w6", "w7"], "answer": 0}])
    (batch,) = opened(path, str(tmp_path / "tokenizer"), chat=True).train_dataloader()
    assert answers_in(batch)[0] == ([40, 0, 5, 0, 41, 6], [6])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "w5", "choices": ["w6"], "answer": 2}, "Expected the number of the right .*row 1 of the train"),
        ({"question": "w5 " * 70, "choices": ["w6"], "answer": 0}, "Expected a prompt and answer of 1 to 64 tokens"),
    ],
)
def test_rows_that_are_no_questions(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = write_rows(tmp_path / "a.jsonl", [ROWS[0], row])
    model = llama_folder(tmp_path / "llama")
    with pytest.raises(ValueError, match=message):
        ChoiceData(str(path), model=str(model)).setup("fit")


LETTERED = {"text": ["a", "b"], "label": ["A", "B"]}
LISTED = [{"label": "A", "text": "a"}, {"label": "B", "text": "b"}]
SOCIAL = {"answerA": "a", "answerB": "b", "answerC": "c"}
FORMS: dict[str, tuple[dict[str, Any], str, str, int]] = {
    "canonical, and MMLU": ({"question": "Q", "subject": "s", "choices": ["a", "b"], "answer": 1}, "Q", "b", 2),
    "ARC": ({"question": "Q", "choices": {**LETTERED, "label": ["1", "2"]}, "answerKey": "2"}, "Q", "b", 2),
    "OpenBookQA": ({"question_stem": "Q", "choices": LETTERED, "answerKey": "A"}, "Q", "a", 2),
    "CommonsenseQA, as published": ({"question": "Q", "choices": LISTED, "answerKey": "B"}, "Q", "b", 2),
    "BoolQ": ({"question": "Q", "answer": True, "passage": "P"}, "P\nQ", "yes", 2),
    "BoolQ of SuperGLUE": ({"question": "Q", "passage": "P", "idx": 0, "label": 0}, "P\nQ", "no", 2),
    "PIQA": ({"goal": "Q", "sol1": "a", "sol2": "b", "label": 1}, "Q", "b", 2),
    "HellaSwag": ({"activity_label": "T", "ctx_a": "c", "ctx": "Q", "endings": [*"abcd"], "label": 3}, "T: Q", "d", 4),
    "WinoGrande": ({"sentence": "Q", "option1": "a", "option2": "b", "answer": "1"}, "Q", "a", 2),
    "Social IQa": ({"context": "P", "question": "Q", **SOCIAL, "label": "3"}, "P\nQ", "c", 3),
    "SWAG": ({"startphrase": "Q", "ending0": "a", "ending1": "b", "label": 0}, "Q", "a", 2),
    "RACE": ({"article": "P", "answer": "B", "question": "Q", "options": ["a", "b"]}, "P\nQ", "b", 2),
    "texts that are numbers": ({"question": "Q", "choices": ["3", "1"], "answer": "1"}, "Q", "1", 2),
}


def question_in(row: dict[str, Any], **names: str) -> Question:
    rows = datasets.Dataset.from_list([row])
    return find_choice_columns(rows, **names).read(rows[0])


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_the_hub(form: str) -> None:
    row, asked, right, count = FORMS[form]
    question = question_in(row)
    assert question.right == right
    assert len(question.choices) == count
    assert question.prompt.replace("Question: ", "") == f"{asked}\nAnswer:"


QUESTION = {"question": "Q", "choices": ["a", "b"]}


@pytest.mark.parametrize(
    ("row", "names", "message"),
    [
        ({"text": "Q", "answer": 0}, {}, "column for the question named question or .*has text, answer"),
        ({**QUESTION, "right": 0}, {}, "column for the answer named answer or answerKey .*Set answer_column"),
        ({**QUESTION, "answer": 0}, {"choices": "options"}, "column for the choices named 'options', but .* question,"),
        ({"question": "Q", "answer": "Paris"}, {}, "Expected a column of choices .*'Paris' in column 'answer'"),
        ({**QUESTION, "answer": "z"}, {}, r"Expected one of the choices .*, but got 'z'"),
        ({"goal": "Q", "sol1": "a", "sol2": "b", "label": 2}, {}, "the right choice, from 0 to 1, but got 2"),
    ],
)
def test_what_is_no_question(row: dict[str, Any], names: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        question_in(row, **names)
