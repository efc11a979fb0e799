"""Tiny Llama, questions in its words, and sets of its blocks."""

from __future__ import annotations

from typing import Any

import torch
from cases.models.language import word_tokenizer
from torch import Tensor, nn

from prunerecover.language.likelihood import Encoding
from prunerecover.language.questions import Question
from prunerecover.plan.plan import Plan
from prunerecover.routing.plan_set import PlanSet
from prunerecover.surgery.merging import block_removals
from prunerecover.surgery.provenance import plan_for, source_of

PROMPTS = torch.tensor([[5, 6, 7, 8, 9], [11, 12, 13, 14, 15], [21, 22, 23, 24, 25]])
GREEDY: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
SETS = ((3, 4), (2, 4), (2, 5), (5,))
MADE: dict[str, PlanSet] = {}


class ByNumber(nn.Module):
    """Router by a number modulo 4: the prompt's first token, or a number from the test."""

    n_sets = len(SETS)

    def features(self, model: nn.Module, prompts: Any, texts: Any) -> Tensor:
        return torch.tensor([[float(prompt[0])] for prompt in prompts])

    def forward(self, features: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(features[:, 0].long() % self.n_sets, self.n_sets).float()


def encoding() -> Encoding:
    return Encoding(word_tokenizer(eos_token="</s>", pad_token="<pad>"), context=64)


def questions(count: int, first: int = 5, seed: int = 0) -> list[Question]:
    """Return questions that begin with word number `first`, with two or three choices."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        words = [f"w{n}" for n in torch.randint(6, 60, (12,), generator=generator).tolist()]
        choices = (words[0], f"{words[1]} {words[2]}", words[3])[: 2 + i % 2]
        found.append(Question(" ".join([f"w{first}", *words[4 : 6 + i % 6]]), choices, i % 2))
    return found


def removing(model: nn.Module, *blocks: int) -> Plan:
    return plan_for(model, block_removals(model, blocks), method="by hand")


def sets_of(model: nn.Module) -> PlanSet:
    """Plan the sets of a model, once for all equal models."""
    source = repr(source_of(model))
    if source not in MADE:
        plans = tuple(removing(model, *blocks) for blocks in SETS)
        MADE[source] = PlanSet(names=tuple(f"set {i}" for i in range(len(SETS))), plans=plans)
    return MADE[source]
