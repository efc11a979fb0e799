"""Texts and questions for language models.

Planning reads wikitext2's validation text. Losses are on the first tokens of wikitext2's test articles and of
tinystories' validation stories, a score per document. Questions come from a test split, and the answer is the choice
with the most likely tokens together. Scores are in bf16 where the processor supports it.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data.real import DEVICE, autocast, data_root

DOCUMENTS, QUESTIONS = 62, 80  # as many articles as wikitext2 has
TEXTS = {"wikitext2": ("wikitext2", "test.txt"), "tinystories": ("tinystories", "validation.jsonl")}
TOKENS = {"wikitext2": 512, "tinystories": 160}
CHOICES = ("arc-easy.test",)
ARTICLE = re.compile(r"^ = [^=].*? = $", re.MULTILINE)


def documents(folder: str, file: str) -> list[str]:
    """Return articles or stories in order."""
    text = (data_root() / "data" / folder / file).read_text()
    if file.endswith(".jsonl"):
        return [json.loads(line)["text"] for line in text.splitlines()]
    return [part.strip() for part in ARTICLE.split(text) if part.strip()]


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text, after the tokenizer's start token if it has one."""
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return start + ids


def calibration(tokenizer: Any, source: tuple[str, str], texts: int, tokens: int, seed: int) -> Tensor:
    """Return the first tokens of documents drawn with a seed, `(texts, tokens)`."""
    found = documents(*source)
    order = np.random.default_rng(seed).permutation(len(found))
    tokenized = (token_ids(tokenizer, found[i])[:tokens] for i in order)
    return torch.tensor(list(islice((ids for ids in tokenized if len(ids) == tokens), texts)))


@torch.inference_mode()
def losses(network: nn.Module, tokenizer: Any, text: str) -> NDArray[np.float64]:
    """Return the mean loss per token of each held-out document, `(DOCUMENTS,)`."""
    found = []
    for document in documents(*TEXTS[text])[:DOCUMENTS]:
        ids = torch.tensor([token_ids(tokenizer, document)[: TOKENS[text]]], device=DEVICE)
        found.append(float(F.cross_entropy(_logits(network, ids)[0, :-1], ids[0, 1:])))
    return np.array(found)


@torch.inference_mode()
def right(network: nn.Module, tokenizer: Any, split: str) -> NDArray[np.float64]:
    """Return per question whether the right choice is the likeliest, `(QUESTIONS,)`."""
    lines = (data_root() / "data" / "commonsense" / f"{split}.jsonl").read_text().splitlines()
    return np.array([_is_right(network, tokenizer, json.loads(line)) for line in lines[:QUESTIONS]], dtype=float)


def _is_right(network: nn.Module, tokenizer: Any, asked: dict[str, Any]) -> bool:
    prompt = token_ids(tokenizer, f"Question: {asked['question']}\nAnswer:")
    answers = [tokenizer(f" {choice}", add_special_tokens=False)["input_ids"] for choice in asked["choices"]]
    longest = max(map(len, answers))
    rows = [prompt + own + [0] * (longest - len(own)) for own in answers]  # causal: needs no mask
    ids = torch.tensor(rows, device=DEVICE)
    logs = _logits(network, ids)[:, len(prompt) - 1 : -1].log_softmax(-1)
    likely = logs.gather(2, ids[:, len(prompt) :, None])[..., 0]
    totals = [float(row[: len(answer)].sum()) for row, answer in zip(likely, answers, strict=True)]
    return int(np.argmax(totals)) == asked["answer"]


def _logits(network: nn.Module, ids: Tensor) -> Tensor:
    with autocast():
        logits: Tensor = network(input_ids=ids).logits
    return logits.float()
