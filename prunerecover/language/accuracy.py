"""Accuracy of a language model at multiple choice: the likeliest answer behind the prompt is chosen.

`acc` compares log-likelihoods of whole answers, `acc_norm` divides each by the number of characters of the answer
first, without the space in front: the definitions of lm-evaluation-harness 0.4.13, `multiple_choice`; the first of
equal answers counts. Log-likelihoods are summed in float32, also for half-precision models. A routed model is routed by
prompts alone. Not covered: examples in the prompt, and answers in the middle of a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.importance.measuring.losses import token_log_likelihoods
from prunerecover.language.likelihood import Encoding, labelled, scored_behind
from prunerecover.language.prompt_routes import input_device, routes_before
from prunerecover.language.questions import Question, check_questions
from prunerecover.model.batches import logits_of, on_device
from prunerecover.model.evaluation import evaluating

INPUTS = ("input_ids", "attention_mask")


@dataclass(frozen=True)
class EncodedQuestion:
    """Tokens of a question with each of its answers.

    Attributes:
        number: Number of the question in the data set.
        rows: Tokens of the prompt and of the answer, for each choice.
        characters: Length of each choice.
        answer: Number of the right choice.
    """

    number: int
    rows: tuple[tuple[list[int], list[int]], ...]
    characters: tuple[int, ...]
    answer: int


def encode_question(question: Question, encoding: Encoding, number: int) -> EncodedQuestion:
    """Return the tokens of a question with each of its answers.

    Args:
        question: Question with one choice or more.
        encoding: Encoding of texts as tokens.
        number: Number of the question in the data set.

    Raises:
        ValueError: If the prompt and an answer are too long for the model.
    """
    rows = tuple(encoding.with_answer(question.prompt, choice) for choice in question.choices)
    return EncodedQuestion(number, rows, tuple(map(len, question.choices)), question.answer)


def choice_batch(questions: Sequence[EncodedQuestion], tokenizer: Any) -> dict[str, Tensor]:
    """Return all answers of some questions as a batch of N rows.

    Returns:
        `input_ids`, `attention_mask` and `labels`, `(N, T)`, with labels of -100 outside answers; and, `(N,)` each, the
        number of the `question`, the `characters` of the answer, and whether the answer is `right`.
    """
    batch = labelled([scored_behind(*row) for question in questions for row in question.rows], tokenizer)
    batch["question"] = torch.tensor([question.number for question in questions for _ in question.rows])
    batch["characters"] = torch.tensor([size for question in questions for size in question.characters])
    rights = [number == question.answer for question in questions for number in range(len(question.rows))]
    return {**batch, "right": torch.tensor(rights)}


def by_question(values: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Return the values `(N,)` of the answers in a batch as `(C,)` for each question of C choices."""
    _, sizes = torch.unique_consecutive(batch["question"], return_counts=True)
    return torch.split(values, sizes.tolist())


def score_choices(sums: Tensor, tokens: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the scores of the Q questions in a batch, from the log-likelihoods of the answers.

    Args:
        sums: Log-likelihood of each answer, `(N,)`.
        tokens: Number of tokens of each answer, `(N,)`.
        batch: Batch from `choice_batch`.

    Returns:
        `(Q,)` each: whether `acc` and `acc_norm` choose the right answer, and the `loss` per token of the right answer.
    """
    rights = by_question(batch["right"], batch)

    def chosen(scores: Tensor) -> Tensor:
        parts = by_question(scores, batch)
        return torch.stack([right[part.argmax()] for part, right in zip(parts, rights, strict=True)])

    loss = -(sums / tokens)[batch["right"]]
    return {"acc": chosen(sums), "acc_norm": chosen(sums / batch["characters"]), "loss": loss}


def choice_log_likelihoods(
    model: nn.Module, questions: Sequence[Question], encoding: Encoding, *, batch_size: int = 8
) -> list[Tensor]:
    """Return the log-likelihood of every answer, `(C,)` per question of C choices, on the CPU.

    Args:
        model: Causal language model, dense, pruned or routed; not changed.
        questions: Questions, in order.
        encoding: Encoding of texts as tokens.
        batch_size: Questions per batch.

    Raises:
        TypeError: If an item is no question.
        ValueError: If there are no questions, or a question is too long for the model.
    """
    found: list[Tensor] = []
    for sums, _, batch in _scored(model, questions, encoding, batch_size):
        found += by_question(sums.cpu(), batch)
    return found


def choice_accuracy(
    model: nn.Module, questions: Sequence[Question], encoding: Encoding, *, batch_size: int = 8
) -> dict[str, float]:
    """Return the shares of questions with the right answer, `acc` and `acc_norm`.

    Args:
        model: Causal language model, dense, pruned or routed; not changed.
        questions: Questions, with equal weights.
        encoding: Encoding of texts as tokens.
        batch_size: Questions per batch.

    Raises:
        TypeError: If an item is no question.
        ValueError: If there are no questions, or a question is too long for the model.
    """
    scores = [score_choices(*scored) for scored in _scored(model, questions, encoding, batch_size)]
    return {name: sum(int(one[name].sum()) for one in scores) / len(questions) for name in ("acc", "acc_norm")}


def _scored(
    model: nn.Module, questions: Sequence[Question], encoding: Encoding, batch_size: int
) -> list[tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """Return the log-likelihoods of answers, their numbers of tokens, and the batch, batch by batch."""
    check_questions(questions)
    encoded = [encode_question(question, encoding, number) for number, question in enumerate(questions)]
    device, found = input_device(model), []
    with evaluating(model):
        for start in range(0, len(encoded), batch_size):
            batch = on_device(choice_batch(encoded[start : start + batch_size], encoding.tokenizer), device)
            inputs = {name: batch[name] for name in INPUTS}
            logits = logits_of(model(**inputs, **routes_before(model, inputs, batch["labels"])))
            found.append((*token_log_likelihoods(logits, batch["labels"]), batch))
    return found
