"""Scores of each set of removed blocks on each prompt: the training data of a router.

Sets share blocks at the beginning, so evaluation follows a tree: blocks on a common branch run once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from prunerecover.display.progress import progress
from prunerecover.families.describe import describe_blocks
from prunerecover.importance.measuring.losses import token_log_likelihoods
from prunerecover.language.likelihood import (
    AnswerRow,
    Encoding,
    answer_batch,
    answer_rows,
    of_similar_length,
)
from prunerecover.language.questions import Question
from prunerecover.model.batches import ModelInputs
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.evaluation import device_of, plain_evaluation
from prunerecover.model.paths import unwrap


def route_table(
    model: nn.Module,
    sets: Sequence[frozenset[int]],
    questions: Sequence[Question],
    encoding: Encoding,
    *,
    batch_size: int = 16,
) -> Tensor:
    """Return the mean log-likelihood per token of each right answer without each set of blocks, `(questions, sets)`.

    Args:
        model: Dense language model of a supported family; not changed.
        sets: Numbers of the removed blocks, an empty set for the dense model.
        questions: Questions, in order.
        encoding: Encoding of texts as tokens.
        batch_size: Answers per batch.

    Raises:
        ValueError: If a set has an unknown block, or all blocks; also if a question is too long.
    """
    rows = answer_rows(questions, encoding)
    return _sums(model, sets, rows, encoding, batch_size) / _tokens(rows)


def choice_tables(
    model: nn.Module,
    sets: Sequence[frozenset[int]],
    questions: Sequence[Question],
    encoding: Encoding,
    *,
    batch_size: int = 16,
) -> tuple[Tensor, Tensor]:
    """Return the table of `route_table`, and whether the right choice is the likeliest, `(questions, sets)` each.

    Choices are compared by the log-likelihood of all tokens, as in `acc` of lm-evaluation-harness. Arguments as in
    `route_table`.
    """
    rows = answer_rows(questions, encoding, contrastive=True)
    sums = _sums(model, sets, rows, encoding, batch_size)
    counts = [len(question.choices) for question in questions]
    rights = [q.answer for q in questions]
    right = [part.argmax(0) == answer for part, answer in zip(torch.split(sums, counts), rights, strict=True)]
    likely = [part[answer] for part, answer in zip(torch.split(sums / _tokens(rows), counts), rights, strict=True)]
    return torch.stack(likely), torch.stack(right)


def _tokens(rows: Sequence[AnswerRow]) -> Tensor:
    """Return the number of tokens of each answer, `(answers, 1)`."""
    return torch.tensor([[len(after)] for _, after, _ in rows])


def _sums(
    model: nn.Module, sets: Sequence[frozenset[int]], rows: Sequence[AnswerRow], encoding: Encoding, batch_size: int
) -> Tensor:
    """Return the log-likelihood of each answer without each set, `(answers, sets)`."""
    model = unwrap(model)
    layout = describe_blocks(model)
    _check_sets(sets, len(layout.blocks))
    device, found = device_of(model), torch.empty(len(rows), len(sets))
    parts = of_similar_length([len(before) + len(after) for before, after, _ in rows], batch_size)
    with plain_evaluation(model), torch.inference_mode():
        runner = BlockRunner(model, layout.container)
        with progress("evaluating omission sets", len(parts)) as advance:
            for part in parts:
                inputs, labels, _ = answer_batch([rows[i] for i in part], encoding.tokenizer)
                judge = partial(_likelihoods, labels=labels.to(device))
                sums = each_set(runner, ModelInputs(kwargs=inputs).to(device), sets, judge)
                found[part] = torch.stack(sums, 1).cpu()
                advance()
    return found


def _check_sets(sets: Sequence[frozenset[int]], depth: int) -> None:
    """Raise ValueError for invalid sets."""
    if not sets:
        raise ValueError("Expected one set of blocks or more, but got none. An empty set is the dense model.")
    for number, gone in enumerate(sets):
        odd = [block for block in sorted(gone) if not 0 <= block < depth]
        if odd:
            raise ValueError(f"Expected sets of blocks from 0 to {depth - 1}, but set {number} names {odd[0]}.")
        if len(gone) == depth:
            raise ValueError(
                f"Expected sets that leave one of the {depth} blocks or more, but set {number} removes all."
            )


def _likelihoods(logits: Tensor, labels: Tensor) -> Tensor:
    return token_log_likelihoods(logits, labels)[0]


def each_set(
    runner: BlockRunner, inputs: ModelInputs, sets: Sequence[frozenset[int]], judge: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Return the value of a judge on the output without each set of blocks; shared parts are computed once.

    Args:
        runner: Runner of the dense model.
        inputs: Batch on the device of the model.
        sets: Numbers of the removed blocks.
        judge: Function of the output of the model; outputs are not kept.
    """
    depth, found = len(runner.blocks), dict[int, Tensor]()

    def walk(index: int, hidden: Tensor, some: Sequence[int]) -> None:
        stop = next((i for i in range(index, depth) if any(i in sets[n] for n in some)), depth)
        hidden = runner.advance(inputs, index, hidden, stop) if stop > index else hidden
        if stop == depth:
            value = judge(runner.finish(inputs, depth, hidden))
            found.update(dict.fromkeys(some, value))
            return
        without = [n for n in some if stop in sets[n]]
        within = [n for n in some if stop not in sets[n]]
        walk(stop + 1, hidden, without)
        if within:
            walk(stop + 1, runner.advance(inputs, stop, hidden, stop + 1), within)

    walk(0, runner.advance(inputs, 0, None, 0), range(len(sets)))
    return [found[n] for n in range(len(sets))]
