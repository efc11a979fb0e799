"""Questions in the forms of the hub's data sets, by the rows that their pages show."""

from __future__ import annotations

from typing import Any

import datasets
import pytest

from prunerecover.language.questions import Question
from prunerecover.recipes.data.language.choice_columns import find_choice_columns

ROWS: dict[str, tuple[dict[str, Any], str, str, int]] = {
    "canonical": ({"question": "Q", "choices": ["a", "b"], "answer": 1}, "Q", "b", 2),
    "ARC": (
        {"id": "x", "question": "Q", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": "2"},
        "Q",
        "b",
        2,
    ),
    "OpenBookQA": (
        {"question_stem": "Q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"},
        "Q",
        "a",
        2,
    ),
    "CommonsenseQA, as published": (
        {"question": "Q", "choices": [{"label": "A", "text": "a"}, {"label": "B", "text": "b"}], "answerKey": "B"},
        "Q",
        "b",
        2,
    ),
    "BoolQ": ({"question": "Q", "answer": True, "passage": "P"}, "P\nQ", "yes", 2),
    "BoolQ of SuperGLUE": ({"question": "Q", "passage": "P", "idx": 0, "label": 0}, "P\nQ", "no", 2),
    "PIQA": ({"goal": "Q", "sol1": "a", "sol2": "b", "label": 1}, "Q", "b", 2),
    "HellaSwag": (
        {"activity_label": "T", "ctx_a": "c", "ctx": "Q", "endings": ["a", "b", "c", "d"], "label": "3"},
        "T: Q",
        "d",
        4,
    ),
    "WinoGrande": ({"sentence": "Q", "option1": "a", "option2": "b", "answer": "1"}, "Q", "a", 2),
    "Social IQa": (
        {"context": "P", "question": "Q", "answerA": "a", "answerB": "b", "answerC": "c", "label": "3"},
        "P\nQ",
        "c",
        3,
    ),
    "SWAG": ({"startphrase": "Q", "ending0": "a", "ending1": "b", "label": 0}, "Q", "a", 2),
    "MMLU": ({"question": "Q", "subject": "s", "choices": ["a", "b"], "answer": 0}, "Q", "a", 2),
    "RACE": ({"article": "P", "answer": "B", "question": "Q", "options": ["a", "b"]}, "P\nQ", "b", 2),
    "texts that are numbers": ({"question": "Q", "choices": ["3", "1"], "answer": "1"}, "Q", "1", 2),
}


def read(row: dict[str, Any], **names: str) -> Question:
    rows = datasets.Dataset.from_list([row])
    return find_choice_columns(rows, **names).read(rows[0])


@pytest.mark.parametrize("form", ROWS)
def test_forms_of_the_hub(form: str) -> None:
    row, asked, right, count = ROWS[form]
    question = read(row)
    assert question.right == right
    assert len(question.choices) == count
    assert question.prompt.replace("Question: ", "") == f"{asked}\nAnswer:"


def test_columns_by_name() -> None:
    row = {"a": "Q", "b": ["x", "y"], "c": "y", "d": "P", "question": "other", "answer": 5}
    question = read(row, question="a", choices="b", answer="c", passage="d")
    assert question == Question("P\nQuestion: Q\nAnswer:", ("x", "y"), 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "Q", "choices": ["a"], "answer": 0}, "column for the question named question or .*has text, choices"),
        ({"question": "Q", "choices": ["a"], "right": 0}, "column for the answer named answer or answerKey .*Set ans"),
        ({"question": "Q", "answer": "Paris"}, "Expected a column of choices .*'Paris' in column 'answer'"),
        ({"question": "Q", "choices": ["a", " "], "answer": 0}, r"Expected choices that are not empty, but got \['a'"),
        ({"question": "Q", "choices": ["a", "b"], "answer": "z"}, r"Expected one of the choices .*, but got 'z'"),
        ({"question": "Q", "choices": ["a", "b"], "answer": -1}, "number of the right choice, from 0 to 1, but got -1"),
        ({"goal": "Q", "sol1": "a", "sol2": "b", "label": 2}, "number of the right choice, from 0 to 1, but got 2"),
        ({"question": "Q", "choices": ["a", "b"], "answer": None}, "answer is missing in one with"),
    ],
)
def test_what_is_no_question(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(row)


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="column for the choices named 'options', but the data has question, choices"):
        read({"question": "Q", "choices": ["a"], "answer": 0}, choices="options")
