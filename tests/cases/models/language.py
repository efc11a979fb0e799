"""Tiny Llama with a tokenizer of a few words, saved as by transformers, and documents of the same words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from cases.models.questions import write_rows
from cases.models.tiny import VOCABULARY, tiny_llama
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

BOS, EOS = 1, 2
WORDS = [f"w{index}" for index in range(3, VOCABULARY)]


def word_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with token 7 for the word `w7`."""
    vocabulary = {"<pad>": 0, "<s>": BOS, "</s>": EOS} | {word: int(word[1:]) for word in WORDS}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def tokenizer_of(folder: Path, **special: str) -> Path:
    """Save a tokenizer of the words."""
    word_tokenizer(**special).save_pretrained(folder)
    return folder


def llama_folder(folder: Path, **changes: Any) -> Path:
    """Save a tiny Llama of 4 blocks and a context of 64 tokens, with a tokenizer."""
    tiny_llama(**changes).save_pretrained(folder)  # type: ignore[operator]
    return tokenizer_of(folder, eos_token="</s>", bos_token="<s>", pad_token="<pad>")


def documents(sizes: Sequence[int], seed: int = 0) -> list[str]:
    """Return documents with the given numbers of words."""
    generator = torch.Generator().manual_seed(seed)
    numbers = (torch.randint(3, VOCABULARY, (size,), generator=generator).tolist() for size in sizes)
    return [" ".join(f"w{number}" for number in row) for row in numbers]


def packed(texts: Sequence[str]) -> list[int]:
    """Return the tokens of documents joined by the end-of-text token, by hand."""
    return [token for text in texts for token in (*(int(word[1:]) for word in text.split()), EOS)]


def write_jsonl(path: Path, texts: Sequence[str], column: str = "text") -> Path:
    return write_rows(path, [{column: text} for text in texts])
