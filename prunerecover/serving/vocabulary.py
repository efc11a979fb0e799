"""Vocabulary of a GGUF file, read off a fast tokenizer of transformers.

Covered: byte-pair encodings over bytes (GPT-2, SmolLM, Llama 3, Qwen2) and over characters with bytes for the rest
(Llama 2, Mistral). Not covered: unigram and WordPiece models, other rules that split a text into words, and
normalisation of a text (Qwen2's NFC).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prunerecover.refusal import Refusal
from prunerecover.serving.decoder import OTHERWISE

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of tokens in llama.cpp
SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unk", "pad": "pad"}
_CASELESS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
_REST = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
# llama.cpp's name for the rules that split a text into words: by pre-tokenizers, and whether whole words skip merges.
SPLITTINGS = {
    ((("ByteLevel", True),), False): "gpt-2",
    ((("Digits", True), ("ByteLevel", True)), False): "smollm",
    ((("Split", f"{_CASELESS}\\p{{N}}{{1,3}}{_REST}"), ("ByteLevel", False)), True): "llama-bpe",
    ((("Split", f"{_CASELESS}\\p{{N}}{_REST}"), ("ByteLevel", False)), False): "qwen2",
}


@dataclass(frozen=True)
class Vocabulary:
    """Entries of a GGUF file for its tokenizer.

    Attributes:
        model: llama.cpp's name of the kind of tokenizer, "gpt2" or "llama".
        splitting: llama.cpp's name of the rules that split a text into words.
        tokens: Texts of all tokens, by number.
        types: Types of all tokens, in llama.cpp's numbers.
        scores: Scores of all tokens, for "llama": the pair with the highest score merges first.
        merges: Pairs in order, for "gpt2".
        special: Numbers of special tokens, by llama.cpp's names.
        begins: Whether a text begins with the first special token.
        space_first: Whether a space is put before a text.
        chat_template: Template of a chat; empty for none.
    """

    model: str
    splitting: str
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    special: Mapping[str, int]
    begins: bool
    space_first: bool
    chat_template: str


def vocabulary_of(tokenizer: Any, size: int) -> Vocabulary:
    """Read a tokenizer.

    Args:
        tokenizer: Fast tokenizer of transformers; not changed.
        size: Number of the network's embeddings; numbers without a token are unused.

    Raises:
        Refusal: If llama.cpp has no such tokenizer, or the tokenizer has more tokens than the network embeddings.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise Refusal("a fast tokenizer of transformers", f"got {type(tokenizer).__name__}", OTHERWISE)
    data = json.loads(backend.to_str())
    model = data["model"]
    if model["type"] != "BPE":
        raise Refusal("a byte-pair encoding", f"the tokenizer is a {model['type']} model", OTHERWISE)
    tokens, types = _tokens(data, size)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    by_characters = bool(model.get("byte_fallback"))
    first = tokenizer("a").input_ids
    special = {name: getattr(tokenizer, f"{name}_token_id", None) for name in SPECIAL}
    template = getattr(tokenizer, "chat_template", None)
    return Vocabulary(
        model="llama" if by_characters else "gpt2",
        splitting="default" if by_characters else _splitting(data),
        tokens=tokens,
        types=types,
        scores=_scores(tokens, merges) if by_characters else [],
        merges=[] if by_characters else merges,
        special={name: number for name, number in special.items() if number is not None},
        begins=bool(first) and first[0] == special["bos"],
        space_first=tokenizer.tokenize("a")[0][0] in "▁Ġ",
        chat_template=template if isinstance(template, str) else "",
    )


def _tokens(data: Mapping[str, Any], size: int) -> tuple[list[str], list[int]]:
    known = {number: text for text, number in data["model"]["vocab"].items()}
    added = {token["id"]: token for token in data["added_tokens"]}
    known |= {number: token["content"] for number, token in added.items()}
    if max(known) >= size:
        raise Refusal(
            f"a tokenizer with at most {size} tokens, the network's embeddings",
            f"it has {max(known) + 1}",
            "Pass the tokenizer that the network was trained with.",
        )
    types = [_type(known.get(number), added.get(number), data["model"]["unk_token"]) for number in range(size)]
    return [known.get(number, f"[unused {number}]") for number in range(size)], types


def _type(text: str | None, added: Mapping[str, Any] | None, unknown: str | None) -> int:
    if text is None:
        return UNUSED
    if text == unknown:
        return UNKNOWN
    if added is not None:
        return CONTROL if added["special"] else USER_DEFINED
    return BYTE if re.fullmatch("<0x[0-9A-F]{2}>", text) else NORMAL


def _scores(tokens: list[str], merges: list[str]) -> list[float]:
    """Return a score per token: minus the number of the first pair that makes the token."""
    made: dict[str, int] = {}
    for number, pair in enumerate(merges):
        made.setdefault(pair.replace(" ", ""), number)
    return [-float(made.get(token, len(merges))) for token in tokens]


def _splitting(data: Mapping[str, Any]) -> str:
    given = data["pre_tokenizer"] or {"type": "none"}
    parts = tuple(map(_part, given["pretokenizers"] if given["type"] == "Sequence" else [given]))
    found = SPLITTINGS.get((parts, bool(data["model"].get("ignore_merges"))))
    if found is None:
        raise Refusal(
            f"a tokenizer that splits texts as {', '.join(SPLITTINGS.values())} do", f"it has rules {parts}", OTHERWISE
        )
    return found


def _part(given: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the type of a pre-tokenizer with the parameters of the rules."""
    read = {"ByteLevel": ("use_regex",), "Digits": ("individual_digits",), "Split": ("pattern", "Regex")}
    value: Any = given
    for name in read.get(given["type"], ("type",)):
        value = value.get(name) if isinstance(value, Mapping) else None
    return given["type"], value
