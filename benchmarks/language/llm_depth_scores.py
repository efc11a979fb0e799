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
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data.questions import encoding, questions
from benchmarks.data.real import BF16, DEVICE, autocast
from benchmarks.data.smollm2 import tokenizer
from benchmarks.depth.graph_depth_text import TEXTS, documents, token_ids
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
DOMAINS, METRICS = (*TEXTS, *QUESTIONS), ("loss", "exact", "acc", "acc_norm")
Scores = dict[str, NDArray[np.float64]]


def metrics(domain: str) -> tuple[str, ...]:
    """Return what a domain is scored by: windows of text, or questions."""
    return ("loss", "exact") if domain in TEXTS else ("acc", "acc_norm")


def scores(network: nn.Module, domain: str, metric: str) -> Scores:
    """Return what a network scores in a domain by a metric, and by what that gives besides."""
    judges = {"loss": losses, "exact": exact}
    return {metric: judges[metric](network, domain)} if metric in judges else hits(network, domain)


def losses(network: nn.Module, text: str) -> NDArray[np.float64]:
    """Return the mean loss per token of each held-out window, `(W,)`."""
    return window_losses(network, windows(text))


@torch.inference_mode()
def window_losses(network: nn.Module, ids: Tensor) -> NDArray[np.float64]:
    """Return the mean loss per token of each window of `ids`, `(W, T)` to `(W,)`."""
    found = []
    for some in ids.to(DEVICE).split(10):
        with autocast():
            logits = network(input_ids=some).logits[:, :-1].float()
        found.append(F.cross_entropy(logits.transpose(1, 2), some[:, 1:], reduction="none").mean(1))
    return torch.cat(found).double().cpu().numpy()


def exact(network: nn.Module, text: str) -> NDArray[np.float64]:
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


def hits(network: nn.Module, domain: str) -> Scores:
    """Return per question whether `acc` and `acc_norm` choose the right answer, `(ASKED,)` each."""
    asked = questions(QUESTIONS[domain], LONGEST)[:ASKED]
    found = choice_log_likelihoods(in_bf16(network), asked, encoding(), batch_size=TOGETHER)
    likely = [own.float() for own in found]
    sizes = [torch.tensor([len(choice) for choice in question.choices]) for question in asked]
    rights = [question.answer for question in asked]
    norm = [own / size for own, size in zip(likely, sizes, strict=True)]
    return {
        metric: np.array([int(own.argmax()) == right for own, right in zip(values, rights, strict=True)], dtype=float)
        for metric, values in {"acc": likely, "acc_norm": norm}.items()
    }
