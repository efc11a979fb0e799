"""What the benchmark of blocks out of SmolLM2 judges networks by: held-out text, and questions with choices.

Losses are in nats per token, one per window, the windows spread evenly over the documents. The last tokens of each
window are written anew by greedy decoding (`exact`: the share that comes out as in the text). Of each set of questions,
those with short prompts are asked, in a seeded order, the same of every network; the choice that is likeliest behind
the prompt is chosen (`acc`), or the likeliest per character (`acc_norm`). Scores are in bf16 where the processor
multiplies in it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data.questions import encoding, questions
from benchmarks.data.real import BF16, DEVICE, autocast
from benchmarks.data.smollm2 import tokenizer
from benchmarks.data.text import TEXTS, documents, token_ids
from benchmarks.runner.rows import Figure, Scores
from prunerecover.language.accuracy import choice_log_likelihoods
from prunerecover.language.continuation import continued_right
from prunerecover.model.copies import deep_copy

WINDOWS, WINDOW = {"wikitext2": 400, "tinystories": 222}, 160
QUESTIONS = {  # by what the rows call them
    "arc-easy": "arc-easy.test",
    "arc-challenge": "arc-challenge.test",
    "boolq": "boolq.test",
    "openbookqa": "openbookqa.test",
    "piqa": "piqa.test",
    "social_i_qa": "social_i_qa.test",
    "winogrande": "winogrande.test",
    "hellaswag": "hellaswag.validation",
}
ASKED, LONGEST = 250, 64  # questions of a set, and tokens of a prompt
WRITTEN = 32  # tokens of a window, behind the others
TOGETHER = 16 if DEVICE.type == "cuda" else 4  # questions
BOTH, SEED = "loss on both texts", 0


def text_scores(network: nn.Module) -> dict[str, Figure]:
    """Return the loss on each text."""
    return {f"loss {text}": Figure.of(window_losses(network, windows(text)), SEED) for text in TEXTS}


def scores(network: nn.Module) -> dict[str, Figure]:
    """Return the losses, the share of tokens that decoding gets right, and of questions that are answered right."""
    found = text_scores(network)
    losses = [figure.scores for figure in found.values()]
    each = sum(map(len, losses)) / len(losses)  # so that the mean of all is the mean of the texts' means
    right = [hits(network, name) for name in QUESTIONS]
    return {
        **found,
        BOTH: Figure.of(np.concatenate([values * each / len(values) for values in losses]), SEED),
        "exact": Figure.of(np.concatenate([exact(network, text) for text in TEXTS]), SEED),
        "acc": Figure.of(np.concatenate([acc for acc, _ in right]), SEED),
        "acc_norm": Figure.of(np.concatenate([norm for _, norm in right]), SEED),
    }


@torch.inference_mode()
def window_losses(network: nn.Module, ids: Tensor) -> Scores:
    """Return the mean loss per token of each window of `ids`, `(W, T)` to `(W,)`."""
    found = []
    for some in ids.to(DEVICE).split(10):
        with autocast():
            logits = network(input_ids=some).logits[:, :-1].float()
        found.append(F.cross_entropy(logits.transpose(1, 2), some[:, 1:], reduction="none").mean(1))
    return torch.cat(found).double().cpu().numpy()


def exact(network: nn.Module, text: str) -> Scores:
    """Return the share of the last `WRITTEN` tokens of each held-out window that greedy decoding gets right, `(W,)`."""
    right = continued_right(in_bf16(network), windows(text), prompt=WINDOW - WRITTEN, batch_size=64)
    return right.double().mean(1).numpy()


def in_bf16(network: nn.Module) -> nn.Module:
    """Return a copy in bf16, if the device multiplies in it."""
    return deep_copy(network).to(torch.bfloat16 if BF16 else torch.float32)


@cache
def windows(text: str) -> Tensor:
    """Return windows that are spread evenly over the held-out documents, one behind the other, `(W, WINDOW)`."""
    ids = torch.tensor([token for document in documents(*TEXTS[text]) for token in token_ids(tokenizer(), document)])
    whole = ids[: len(ids) // WINDOW * WINDOW].view(-1, WINDOW)
    return whole[np.linspace(0, len(whole) - 1, WINDOWS[text]).astype(int)]


def hits(network: nn.Module, domain: str) -> tuple[Scores, Scores]:
    """Return per question whether the likeliest answer is right, and the likeliest per character, `(ASKED,)` each."""
    asked = questions(QUESTIONS[domain], LONGEST)[:ASKED]
    found = choice_log_likelihoods(in_bf16(network), asked, encoding(), batch_size=TOGETHER)
    likely = [own.float() for own in found]
    norm = [own / torch.tensor([len(one) for one in q.choices]) for own, q in zip(likely, asked, strict=True)]
    acc, acc_norm = (
        np.array([int(own.argmax()) == q.answer for own, q in zip(values, asked, strict=True)], dtype=float)
        for values in (likely, norm)
    )
    return acc, acc_norm
