"""Likelihoods of answers under a language model: tokens of prompt and answer, log-likelihoods, and losses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.importance.measuring.losses import IGNORED, token_log_likelihoods
from prunerecover.language.prompt_routes import routes_before
from prunerecover.language.questions import Question, check_questions
from prunerecover.model.batches import logits_of

AnswerBatch = tuple[dict[str, Tensor], Tensor, Tensor]
TokenRow = tuple[list[int], list[int]]  # tokens, and a label for each, -100 for tokens without a score
AnswerRow = tuple[list[int], list[int], float]  # tokens of a prompt and of an answer, and the answer's weight


@dataclass(frozen=True)
class Encoding:
    """Encoding of texts as tokens.

    Attributes:
        tokenizer: Tokenizer of transformers.
        context: Maximum number of tokens of the model; None: the maximum of the tokenizer.
        chat: Whether the prompt is the message of a user, in the tokenizer's chat template.

    Raises:
        ValueError: If `chat` is set and the tokenizer has no template.
    """

    tokenizer: Any
    context: int | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        """Check the tokenizer."""
        if self.chat and not getattr(self.tokenizer, "chat_template", None):
            raise ValueError(
                f"Expected a tokenizer with a chat template, but {self.tokenizer.name_or_path} has none. Use "
                "chat=False."
            )

    def prompt(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt without an answer.

        Raises:
            ValueError: If the prompt is too long for the model.
        """
        ids = self._tokens(self._text(prompt))
        self._check(ids, prompt)
        return ids

    def with_answer(self, prompt: str, answer: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a prompt and of an answer behind the prompt, tokenized as a single text.

        White space at the end of the prompt, as in a chat template, belongs to the answer, as for tokenizers and in
        lm-evaluation-harness.

        Raises:
            ValueError: If there are too many tokens for the model, or the answer has no tokens.
        """
        text = self._text(prompt)
        before = self._tokens(text.rstrip())
        after = self._tokens(text + (answer if self.chat else f" {answer}"))[len(before) :]
        if not after:
            raise ValueError(f"Expected an answer of one token or more, but {answer!r} has none. Leave it out.")
        self._check([*before, *after], prompt)
        return before, after

    def _text(self, prompt: str) -> str:
        if not self.chat:
            return prompt
        message = [{"role": "user", "content": prompt}]
        text: str = self.tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        return text

    def _tokens(self, text: str) -> list[int]:
        """Return the tokens without the end of text of some tokenizers; a chat template has special tokens."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=not self.chat, verbose=False)["input_ids"]
        ends = not self.chat and len(ids) > 1 and ids[-1] == self.tokenizer.eos_token_id
        return ids[:-1] if ends else ids

    def _check(self, ids: Sequence[int], prompt: str) -> None:
        context = self.context or int(self.tokenizer.model_max_length)
        if not ids or len(ids) > context:
            raise ValueError(
                f"Expected a prompt and answer of 1 to {context} tokens, the context of the model, but got {len(ids)} "
                f"for {prompt[:60]!r}. Shorten it, or leave it out."
            )


def padded(rows: Sequence[Sequence[int]], tokenizer: Any, *, left: bool = False) -> dict[str, Tensor]:
    """Return `input_ids` and `attention_mask` `(N, T)` of token lists; the tokenizer needs no padding token.

    Args:
        rows: Tokens of each sample.
        tokenizer: Tokenizer with a padding token, or else end of text, for masked places.
        left: Whether the padding comes first, as in generation.
    """
    names = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    fill = next(name for name in names if name is not None)
    longest = max(map(len, rows))
    ids, mask = torch.full((len(rows), longest), fill), torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(len(row))
        ids[i, place], mask[i, place] = torch.tensor(row), 1
    return {"input_ids": ids, "attention_mask": mask}


def scored_behind(before: Sequence[int], after: Sequence[int]) -> TokenRow:
    """Return the tokens of a prompt and an answer, and labels to score the answer alone."""
    return [*before, *after], [*[IGNORED] * len(before), *after]


def labelled(rows: Sequence[TokenRow], tokenizer: Any) -> dict[str, Tensor]:
    """Return `input_ids`, `attention_mask` and `labels`, `(N, T)` each; padding has labels of -100.

    Args:
        rows: Tokens and labels of each sample.
        tokenizer: Tokenizer for the padding, see `padded`.
    """
    batch = padded([ids for ids, _ in rows], tokenizer)
    labels = torch.full_like(batch["input_ids"], IGNORED)
    for i, (_, row) in enumerate(rows):
        labels[i, : len(row)] = torch.tensor(row)
    return {**batch, "labels": labels}


def answer_batches(
    questions: Sequence[Question], encoding: Encoding, *, contrastive: bool = False, batch_size: int = 16
) -> list[AnswerBatch]:
    """Return batches for `answer_loss`: inputs, labels `(N, T)`, -100 outside answers, and weights `(N,)`.

    Answers of similar length share a batch; batches are shuffled: see `of_similar_length`.

    Args:
        questions: Questions, see `answer_rows`.
        encoding: Encoding of texts as tokens.
        contrastive: Whether to use wrong answers, see `answer_rows`.
        batch_size: Answers per batch.

    Raises:
        TypeError: If an item is no question.
        ValueError: If there are no questions, or a question is too long.
    """
    rows = answer_rows(questions, encoding, contrastive=contrastive)
    parts = of_similar_length([len(before) + len(after) for before, after, _ in rows], batch_size)
    return [answer_batch([rows[i] for i in part], encoding.tokenizer) for part in parts]


def answer_rows(questions: Sequence[Question], encoding: Encoding, *, contrastive: bool = False) -> list[AnswerRow]:
    """Return the tokens and the weight of each answer, question by question.

    Args:
        questions: Questions, in order.
        encoding: Encoding of texts as tokens.
        contrastive: Whether wrong answers are to become less likely: the right answer of C has weight C - 1, each wrong
            answer -1 (PuDDing, arXiv 2502.04348, the contrastive form of its task likelihood). False: right answers
            alone.

    Raises:
        TypeError: If an item is no question.
        ValueError: If there are no questions, or a question is too long.
    """
    check_questions(questions)
    rows: list[AnswerRow] = []
    for question in questions:
        for number, choice in enumerate(question.choices):
            right = number == question.answer
            if right or contrastive:
                weight = (len(question.choices) - 1 if right else -1) if contrastive else 1
                rows.append((*encoding.with_answer(question.prompt, choice), float(weight)))
    return rows


def of_similar_length(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Return the numbers of all rows in groups of `size` rows of similar length, with little padding.

    The order of groups is random with a fixed seed, so some groups represent all; rows of a group keep their order.

    >>> sorted(of_similar_length([9, 2, 8, 3], 2))
    [[0, 2], [1, 3]]
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    groups = [sorted(order[i : i + size]) for i in range(0, len(order), size)]
    random.Random(0).shuffle(groups)
    return groups


def answer_batch(rows: Sequence[AnswerRow], tokenizer: Any) -> AnswerBatch:
    """Return some answers as a batch: see `answer_batches`."""
    inputs = labelled([scored_behind(before, after) for before, after, _ in rows], tokenizer)
    return inputs, inputs.pop("labels"), torch.tensor([weight for *_, weight in rows])


def answer_likelihoods(model: nn.Module, batch: AnswerBatch) -> Tensor:
    """Return the mean log-likelihood per token of each answer, `(N,)`."""
    inputs, labels, _ = batch
    logits = logits_of(model(**inputs, **routes_before(model, inputs, labels)))
    sums, tokens = token_log_likelihoods(logits, labels)
    return sums / tokens


def answer_loss(model: nn.Module, batch: AnswerBatch) -> Tensor:
    """Return the weighted negative log-likelihood of answers, a loss for `plan_depth` and for training.

    The mean over the batch of -weight x mean log-likelihood per token: small for likely right answers, and, in
    contrastive batches, for unlikely wrong answers; see `answer_batches`.
    """
    return -(batch[2] * answer_likelihoods(model, batch)).mean()


def next_token_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return the cross-entropy of each token given the tokens before, averaged over the tokens.

    Args:
        model: Causal language model.
        batch: Mapping with `input_ids` `(N, T)` and, for padded sequences, `attention_mask`; optional `labels` select
            the scored tokens, -100 for none.

    Raises:
        ValueError: If a routed model is to score a whole text: see `routes_before`.
    """
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    labels = batch.get("labels", inputs["input_ids"])
    if "attention_mask" in inputs:
        labels = labels.masked_fill(inputs["attention_mask"] == 0, IGNORED)
    logits = logits_of(model(**inputs, **routes_before(model, inputs, labels)))
    sums, tokens = token_log_likelihoods(logits, labels)
    return sums.sum().neg() / tokens.sum().clamp_min(1)
