"""Accuracy of multiple choice: the likeliest answer, summed and per character, as lm-evaluation-harness counts."""

from __future__ import annotations

import pytest
import torch
from cases.models.language import word_tokenizer
from cases.models.questions import answer_by_hand
from cases.models.tiny import tiny_llama

from prunerecover.language.accuracy import (
    choice_accuracy,
    choice_batch,
    choice_log_likelihoods,
    encode_question,
    score_choices,
)
from prunerecover.language.likelihood import Encoding
from prunerecover.language.questions import Question

QUESTIONS = [
    Question(f"w{3 + i} w{7 + 2 * i} w{20 + i}", (f"w{9 + i}", f"w{10 + i} w{30 - i} w12", "w4 w5"), i % 3)
    for i in range(8)
]


@pytest.fixture(scope="module")
def llama() -> torch.nn.Module:
    return tiny_llama()


@pytest.fixture(scope="module")
def encoding() -> Encoding:
    return Encoding(word_tokenizer(), context=64)


def by_hand(llama: torch.nn.Module, question: Question) -> list[float]:
    return [sum(answer_by_hand(llama, question, choice)) for choice in question.choices]


def share(rights: list[bool]) -> float:
    return sum(rights) / len(rights)


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_log_likelihoods_are_those_of_each_answer_alone(
    llama: torch.nn.Module, encoding: Encoding, batch_size: int
) -> None:
    found = choice_log_likelihoods(llama, QUESTIONS, encoding, batch_size=batch_size)
    for one, question in zip(found, QUESTIONS, strict=True):
        assert one.tolist() == pytest.approx(by_hand(llama, question), abs=1e-4)


def test_accuracy_is_by_the_sum_and_per_character(llama: torch.nn.Module, encoding: Encoding) -> None:
    rights, normed = [], []
    for question in QUESTIONS:
        sums = by_hand(llama, question)
        means = [total / len(choice) for total, choice in zip(sums, question.choices, strict=True)]
        rights.append(sums.index(max(sums)) == question.answer)
        normed.append(means.index(max(means)) == question.answer)
    assert rights != normed
    found = choice_accuracy(llama, QUESTIONS, encoding, batch_size=3)
    assert found == pytest.approx({"acc": share(rights), "acc_norm": share(normed)})


def test_characters_are_counted_not_bytes(encoding: Encoding) -> None:
    batch = choice_batch([encode_question(Question("w5", ("ää", "w6 w7"), 0), encoding, 4)], encoding.tokenizer)
    assert batch["characters"].tolist() == [2, 5]
    assert batch["question"].tolist() == [4, 4]
    assert batch["right"].tolist() == [True, False]


def test_the_first_of_equal_answers_is_chosen(encoding: Encoding) -> None:
    question = Question("w5", ("w6", "w7"), 0)
    batch = choice_batch([encode_question(question, encoding, 0)], encoding.tokenizer)
    found = score_choices(torch.tensor([-3.0, -3.0]), torch.tensor([1, 1]), batch)
    assert found["acc"].tolist() == found["acc_norm"].tolist() == [True]


def test_the_loss_is_per_token_of_the_right_answer(encoding: Encoding) -> None:
    questions = [Question("w5", ("w6", "w7 w8"), 1), Question("w5", ("w6", "w7", "w8"), 0)]
    rows = [encode_question(question, encoding, number) for number, question in enumerate(questions)]
    batch = choice_batch(rows, encoding.tokenizer)
    found = score_choices(torch.tensor([-9.0, -6.0, -1.0, -2.0, -3.0]), torch.tensor([1, 2, 1, 1, 1]), batch)
    assert found["loss"].tolist() == [3.0, 1.0]
    assert found["acc"].tolist() == [True, True]


def test_no_question_is_refused(llama: torch.nn.Module, encoding: Encoding) -> None:
    with pytest.raises(ValueError, match="Expected at least one question, but got none"):
        choice_accuracy(llama, (), encoding)
