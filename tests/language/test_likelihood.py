"""Likelihoods of answers and texts, and the accuracy of multiple choice, as lm-evaluation-harness counts."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

import pytest
import torch
from cases.models.language import word_tokenizer
from cases.models.questions import answer_by_hand
from cases.models.tiny import tiny_llama
from torch.nn import functional

from prunerecover.language.accuracy import (
    choice_accuracy,
    choice_batch,
    choice_log_likelihoods,
    encode_question,
    score_choices,
)
from prunerecover.language.likelihood import (
    Encoding,
    answer_batches,
    answer_likelihoods,
    answer_loss,
    next_token_loss,
    padded,
)
from prunerecover.language.questions import Question, question_of

QUESTIONS = (
    Question("w5 w6 w7 w8", ("w9", "w10 w11 w12"), 1),
    Question("w6 w13 w14 w15 w5 w16 w17", ("w10", "w9 w9", "w20"), 0),
)


@pytest.fixture(scope="module")
def llama() -> torch.nn.Module:
    return tiny_llama()


@pytest.fixture(scope="module")
def encoding() -> Encoding:
    return Encoding(word_tokenizer(), context=64)


def one_by_one(llama: torch.nn.Module, question: Question, number: int) -> float:
    return fmean(answer_by_hand(llama, question, question.choices[number]))


@torch.no_grad()
def test_likelihoods_of_padded_answers_are_those_of_each_alone(llama: torch.nn.Module, encoding: Encoding) -> None:
    (batch,) = answer_batches(QUESTIONS, encoding, contrastive=True)
    wanted = [one_by_one(llama, q, n) for q in QUESTIONS for n in range(len(q.choices))]
    assert answer_likelihoods(llama, batch).tolist() == pytest.approx(wanted, abs=1e-5)


@torch.no_grad()
def test_the_loss_is_the_papers_task_likelihood(llama: torch.nn.Module, encoding: Encoding) -> None:
    batches = answer_batches(QUESTIONS, encoding, batch_size=1)
    found = sum(float(answer_loss(llama, batch)) for batch in batches)
    assert found == pytest.approx(-sum(one_by_one(llama, q, q.answer) for q in QUESTIONS), abs=1e-5)


@torch.no_grad()
def test_the_contrastive_loss_weighs_the_right_answer_against_all_others(
    llama: torch.nn.Module, encoding: Encoding
) -> None:
    (batch,) = answer_batches(QUESTIONS, encoding, contrastive=True)
    total = 0.0
    for q in QUESTIONS:
        likely = [one_by_one(llama, q, n) for n in range(len(q.choices))]
        total -= (len(likely) - 1) * likely[q.answer] - sum(likely[: q.answer] + likely[q.answer + 1 :])
    assert float(answer_loss(llama, batch)) * 5 == pytest.approx(total, abs=1e-4)


@torch.no_grad()
def test_the_next_token_loss_is_that_of_transformers_and_padding_is_not_scored(llama: torch.nn.Module) -> None:
    ids = torch.randint(0, 60, (3, 9))
    wanted = pytest.approx(float(llama(input_ids=ids, labels=ids).loss), abs=1e-6)
    longer, mask = (functional.pad(tokens, (0, 4)) for tokens in (ids, torch.ones_like(ids)))
    for batch in ({"input_ids": ids}, {"input_ids": longer, "attention_mask": mask}):
        assert float(next_token_loss(llama, batch)) == wanted


def test_padding_needs_no_token_for_it() -> None:
    tokenizer = word_tokenizer()
    tokenizer.pad_token = None
    right = padded([[5, 6], [7]], tokenizer)
    left = padded([[5, 6], [7]], tokenizer, left=True)
    assert right["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert left["attention_mask"].tolist() == [[1, 1], [0, 1]]
    assert left["input_ids"][1, 1] == 7


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: Question(" ", ("a",), 0), "Expected a prompt that the answers follow"),
        (lambda: Question("Q", (), 0), "Expected choices that are not empty"),
        (lambda: Question("Q", ("a", ""), 0), "Expected choices that are not empty"),
        (lambda: Question("Q", ("a", "b"), 2), "the number of the right choice, from 0 to 1, but got 2"),
        (lambda: Question("Q", ("a", "b"), -1), "the number of the right choice, from 0 to 1, but got -1"),
        (lambda: question_of({"question": "Q", "choices": ["a"]}), "answer is missing in one with choices, question"),
        (
            lambda: question_of({"question": "Q", "choices": ["a"], "answer": "b"}),
            r"one of the choices \['a'\].*got 'b'",
        ),
        (lambda: Encoding(word_tokenizer(), chat=True), "a tokenizer with a chat template, but .*Use chat=False"),
        (lambda: answer_batches(QUESTIONS, Encoding(word_tokenizer(), context=7)), "1 to 7 tokens, the context of the"),
        (lambda: answer_batches((), Encoding(word_tokenizer())), "Expected at least one question, but got none"),
        (lambda: choice_accuracy(tiny_llama(), (), Encoding(word_tokenizer())), "Expected at least one question, but"),
    ],
)
def test_what_is_no_question_is_refused(refused: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refused()


def test_rows_in_place_of_questions_are_refused() -> None:
    rows: Any = [{"question": "is snow warm", "choices": ["yes", "no"], "answer": 1}]
    with pytest.raises(TypeError, match=r"Expected questions \(Question\), but one is of dict\. Read rows"):
        choice_accuracy(tiny_llama(), rows, Encoding(word_tokenizer()))


def test_rows_of_data_sets_become_questions() -> None:
    row = {"question": "is snow warm", "choices": ["yes", "no"], "answer": 1, "passage": "Snow is cold."}
    assert question_of(row).prompt == "Snow is cold.\nQuestion: is snow warm\nAnswer:"
    assert question_of(row).right == "no"


ASKED = [
    Question(f"w{3 + i} w{7 + 2 * i} w{20 + i}", (f"w{9 + i}", f"w{10 + i} w{30 - i} w12", "w4 w5"), i % 3)
    for i in range(8)
]


def by_hand(llama: torch.nn.Module, question: Question) -> list[float]:
    return [sum(answer_by_hand(llama, question, choice)) for choice in question.choices]


def share(rights: list[bool]) -> float:
    return sum(rights) / len(rights)


def test_log_likelihoods_are_those_of_each_answer_alone(llama: torch.nn.Module, encoding: Encoding) -> None:
    found = choice_log_likelihoods(llama, ASKED, encoding, batch_size=3)
    for one, question in zip(found, ASKED, strict=True):
        assert one.tolist() == pytest.approx(by_hand(llama, question), abs=1e-4)


def test_accuracy_is_by_the_sum_and_per_character(llama: torch.nn.Module, encoding: Encoding) -> None:
    rights, normed = [], []
    for question in ASKED:
        sums = by_hand(llama, question)
        means = [total / len(choice) for total, choice in zip(sums, question.choices, strict=True)]
        rights.append(sums.index(max(sums)) == question.answer)
        normed.append(means.index(max(means)) == question.answer)
    assert rights != normed
    found = choice_accuracy(llama, ASKED, encoding, batch_size=3)
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
