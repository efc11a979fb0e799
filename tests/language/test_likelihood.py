"""Likelihoods of answers and texts, and the accuracy of multiple choice, as lm-evaluation-harness counts."""

from __future__ import annotations

from statistics import fmean

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
def test_the_next_token_loss_is_that_of_transformers(llama: torch.nn.Module) -> None:
    ids = torch.randint(0, 60, (3, 9))
    assert float(next_token_loss(llama, {"input_ids": ids})) == pytest.approx(
        float(llama(input_ids=ids, labels=ids).loss), abs=1e-6
    )


@torch.no_grad()
def test_padding_is_not_scored(llama: torch.nn.Module) -> None:
    ids = torch.randint(0, 60, (1, 9))
    padded_ids = torch.cat([ids, torch.zeros(1, 4, dtype=torch.long)], 1)
    mask = torch.tensor([[1] * 9 + [0] * 4])
    found = next_token_loss(llama, {"input_ids": padded_ids, "attention_mask": mask})
    assert float(found) == pytest.approx(float(next_token_loss(llama, {"input_ids": ids})), abs=1e-6)


def test_padding_needs_no_token_for_it() -> None:
    tokenizer = word_tokenizer()
    tokenizer.pad_token = None
    right = padded([[5, 6], [7]], tokenizer)
    left = padded([[5, 6], [7]], tokenizer, left=True)
    assert right["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert left["attention_mask"].tolist() == [[1, 1], [0, 1]]
    assert left["input_ids"][1, 1] == 7


def test_a_prompt_beyond_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match="1 to 7 tokens, the context of the model, but got"):
        answer_batches(QUESTIONS, Encoding(word_tokenizer(), context=7))


def test_chat_templates_are_used(encoding: Encoding) -> None:
    tokenizer = word_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}w40 {{ m['content'] }}{% endfor %} w41 "
    assert encoding.prompt("w5 w6") == [5, 6]
    assert Encoding(tokenizer, chat=True).prompt("w5 w6") == [40, 5, 6, 41]
    assert Encoding(tokenizer, chat=True).with_answer("w5 w6", "w7") == ([40, 5, 6, 41], [7])


def test_no_question_is_refused(encoding: Encoding) -> None:
    with pytest.raises(ValueError, match="Expected at least one question, but got none"):
        answer_batches((), encoding)


@pytest.mark.parametrize(
    ("prompt", "choices", "answer", "message"),
    [
        (" ", ("a",), 0, "Expected a prompt that the answers follow"),
        ("Q", (), 0, "Expected choices that are not empty"),
        ("Q", ("a", ""), 0, "Expected choices that are not empty"),
        ("Q", ("a", "b"), 2, "Expected the number of the right choice, from 0 to 1, but got 2"),
    ],
)
def test_questions_that_are_none(prompt: str, choices: tuple[str, ...], answer: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Question(prompt, choices, answer)


def test_rows_of_data_sets_become_questions() -> None:
    row = {"question": "is snow warm", "choices": ["yes", "no"], "answer": 1, "passage": "Snow is cold."}
    assert question_of(row).prompt == "Snow is cold.\nQuestion: is snow warm\nAnswer:"
    assert question_of(row).right == "no"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "Q", "choices": ["a"]}, "answer is missing in one with choices, question"),
        ({"question": "Q", "choices": ["a"], "answer": "b"}, r"Expected one of the choices \['a'\]"),
    ],
)
def test_rows_that_are_no_questions(row: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        question_of(row)


ASKED = [
    Question(f"w{3 + i} w{7 + 2 * i} w{20 + i}", (f"w{9 + i}", f"w{10 + i} w{30 - i} w12", "w4 w5"), i % 3)
    for i in range(8)
]


def by_hand(llama: torch.nn.Module, question: Question) -> list[float]:
    return [sum(answer_by_hand(llama, question, choice)) for choice in question.choices]


def share(rights: list[bool]) -> float:
    return sum(rights) / len(rights)


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_log_likelihoods_are_those_of_each_answer_alone(
    llama: torch.nn.Module, encoding: Encoding, batch_size: int
) -> None:
    found = choice_log_likelihoods(llama, ASKED, encoding, batch_size=batch_size)
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


def test_the_loss_is_per_token_of_the_right_answer(encoding: Encoding) -> None:
    questions = [Question("w5", ("w6", "w7 w8"), 1), Question("w5", ("w6", "w7", "w8"), 0)]
    rows = [encode_question(question, encoding, number) for number, question in enumerate(questions)]
    batch = choice_batch(rows, encoding.tokenizer)
    found = score_choices(torch.tensor([-9.0, -6.0, -1.0, -2.0, -3.0]), torch.tensor([1, 2, 1, 1, 1]), batch)
    assert found["loss"].tolist() == [3.0, 1.0]
    assert found["acc"].tolist() == [True, True]


def test_accuracy_of_no_question_is_refused(llama: torch.nn.Module, encoding: Encoding) -> None:
    with pytest.raises(ValueError, match="Expected at least one question, but got none"):
        choice_accuracy(llama, (), encoding)
