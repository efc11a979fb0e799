"""Multiple-choice questions for SmolLM2, in a seeded order."""

from __future__ import annotations

import json
from functools import cache

import numpy as np

from benchmarks.data.real import data_root
from benchmarks.data.smollm2 import tokenizer
from prunerecover.language.likelihood import Encoding
from prunerecover.language.questions import Question, question_of


def encoding() -> Encoding:
    """Return how text becomes tokens."""
    return Encoding(tokenizer(), context=2048)


@cache
def questions(file: str, longest: int) -> list[Question]:
    """Return the questions of a file, such as `arc-easy.test`, with prompts of up to `longest` tokens."""
    lines = (data_root() / "data" / "commonsense" / f"{file}.jsonl").read_text().splitlines()
    found = (question_of(json.loads(lines[i])) for i in np.random.default_rng(0).permutation(len(lines)))
    return [question for question in found if len(encoding().prompt(question.prompt)) <= longest]
