"""Texts for language models: documents, the first tokens of some, and the losses of a network on sequences."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data.real import data_root
from benchmarks.runner.rows import Scores

TEXTS = {"wikitext2": ("wikitext2", "test.txt"), "tinystories": ("tinystories", "validation.jsonl")}
ARTICLE = re.compile(r"^ = [^=].*? = $", re.MULTILINE)


def documents(folder: str, file: str) -> list[str]:
    """Return articles or stories in order."""
    text = (data_root() / "data" / folder / file).read_text()
    if file.endswith(".jsonl"):
        return [json.loads(line)["text"] for line in text.splitlines()]
    return [part.strip() for part in ARTICLE.split(text) if part.strip()]


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text, after the tokenizer's start token if any."""
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return start + ids


def calibration(tokenizer: Any, source: tuple[str, str], texts: int, tokens: int, seed: int) -> Tensor:
    """Return the first tokens of documents drawn with a seed, `(texts, tokens)`."""
    found = documents(*source)
    order = np.random.default_rng(seed).permutation(len(found))
    tokenized = (token_ids(tokenizer, found[i])[:tokens] for i in order)
    return torch.tensor(list(islice((ids for ids in tokenized if len(ids) == tokens), texts)))


def next_token_loss(network: nn.Module, ids: Tensor) -> Tensor:
    """Return the loss of a language model of transformers on the next tokens of `ids`, `(N, T)`."""
    loss: Tensor = network(input_ids=ids, labels=ids, use_cache=False).loss
    return loss


@torch.inference_mode()
def losses(network: nn.Module, ids: Tensor, together: int = 32) -> Scores:
    """Return the mean loss per token of each text of `ids`, `(N, T)` to `(N,)`, so many at a time."""
    found = []
    for some in ids.split(together):
        logits = network(input_ids=some, use_cache=False).logits[:, :-1].float()
        found.append(F.cross_entropy(logits.transpose(1, 2), some[:, 1:], reduction="none").mean(1))
    return torch.cat(found).double().cpu().numpy()
