"""Vocabularies of GGUF files: the tokens of a tokenizer with llama.cpp's names for its rules."""

from __future__ import annotations

from typing import Any

import pytest
from cases.models.language import word_tokenizer
from cases.serving.uneven import byte_tokenizer, character_tokenizer, split_by
from tokenizers import pre_tokenizers

from prunerecover.refusal import Refusal
from prunerecover.serving.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, vocabulary_of

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
SPLITTINGS = {
    "gpt-2": byte_tokenizer,
    "smollm": lambda: byte_tokenizer(pre_tokenizers.Digits(individual_digits=True)),
    "llama-bpe": lambda: byte_tokenizer(split_by(LLAMA_3), normal=False),
}


@pytest.mark.parametrize("name", SPLITTINGS)
def test_rules_that_split_a_text_have_llama_cpps_name(name: str) -> None:
    assert vocabulary_of(SPLITTINGS[name](), 512).splitting == name


def test_a_byte_pair_encoding_keeps_its_merges() -> None:
    tokenizer = byte_tokenizer()
    found = vocabulary_of(tokenizer, 300)
    assert (found.model, found.merges[:2], found.scores) == ("gpt2", ["h e", "t he"], [])
    assert found.tokens[: len(tokenizer)] == tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    assert found.types[:3] == [CONTROL, CONTROL, NORMAL]
    assert found.types[len(tokenizer) - 1 :] == [USER_DEFINED] + [UNUSED] * (300 - len(tokenizer))
    assert not found.begins
    assert not found.space_first


def test_an_encoding_of_characters_merges_by_score() -> None:
    found = vocabulary_of(character_tokenizer(), 512)
    scores = dict(zip(found.tokens, found.scores, strict=True))
    assert scores["he"] > scores["the"] > scores["▁the"] > scores["▁a"] > scores["h"]
    assert found.types[:4] == [UNKNOWN, CONTROL, CONTROL, BYTE]
    assert found.begins
    assert found.space_first
    assert dict(found.special) == {"unk": 0, "bos": 1, "eos": 2}


class Slow:
    """A tokenizer in Python alone."""


def with_pattern(pattern: str) -> Any:
    return byte_tokenizer(split_by(pattern))


@pytest.mark.parametrize(
    ("tokenizer", "size", "told"),
    [
        (Slow, 512, "fast tokenizer of transformers, but got Slow. Serve it with transformers"),
        (word_tokenizer, 512, "byte-pair encoding, but the tokenizer is a WordLevel model. Serve"),
        (lambda: with_pattern("a|b"), 512, r"splits texts as gpt-2, .* but it has rules \(\('Split', 'a|b'\)"),
        (byte_tokenizer, 100, "at most 100 tokens, the network's embeddings, but it has 264. Pass the tokenizer"),
    ],
)
def test_tokenizers_that_llama_cpp_has_not_are_refused(tokenizer: Any, size: int, told: str) -> None:
    with pytest.raises(Refusal, match=told):
        vocabulary_of(tokenizer(), size)
