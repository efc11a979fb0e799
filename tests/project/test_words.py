"""Plain words in docstrings and pages: nouns instead of stand-ins, arguments as noun phrases, statements as titles."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from cases.docs.blocks import pages, read, without_blocks
from cases.paths import ROOT

# Largest percentages of stand-ins for nouns among the words of docstrings, and of argument descriptions that open
# without a noun phrase: measured and rounded up. Lower a number when docstrings have improved, and never raise one.
MOST = {
    "prunerecover": {"stand-ins": 2.2, "open": 0.4},
    "callbacks": {"stand-ins": 2.5, "open": 0.0},
    "recipes": {"stand-ins": 2.0, "open": 0.0},
    "tests": {"stand-ins": 4.1, "open": 2.0},
    "benchmarks": {"stand-ins": 2.6, "open": 0.5},
}
MOST_IN_PAGES = 3.6  # stand-ins, in percent of the words outside code; see `MOST`
WHOLE = {"stand-ins": "words", "open": "descriptions"}
STAND_INS = re.compile(
    r"\b(what|that|which|whose|it|its|they|them|their|this|these|those|ones?|others?|such|so|(?:any|some|no)thing)\b"
)
OPENERS = re.compile(
    r"(of|in|on|for|from|by|as|see|what|that|which|whose|where|when|how|its|their|unwrapped)\b", re.IGNORECASE
)
QUESTIONS = re.compile(r"(what|how|which|where|when)\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]*`|>>>.*")
LINK = re.compile(r"\]\([^)]*\)")
ARGUMENTS = re.compile(r"^(?:Args|Attributes):\n((?: .*\n?|\n)+)", re.MULTILINE)
DESCRIPTION = re.compile(r"^ {4}\*{0,2}\w+: (.+)", re.MULTILINE)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def counts(source: str) -> Counter[str]:
    """Return the numbers of words, stand-ins, descriptions, open descriptions and questions in docstrings."""
    found: Counter[str] = Counter()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
        if text is None:
            continue
        words = CODE.sub(" ", text).lower()
        described = DESCRIPTION.findall("\n".join(ARGUMENTS.findall(text)))
        found["words"] += len(re.findall(r"[a-z']+", words))
        found["stand-ins"] += len(STAND_INS.findall(words))
        found["descriptions"] += len(described)
        found["open"] += sum(OPENERS.match(said) is not None for said in described)
        found["questions"] += node is tree and QUESTIONS.match(text) is not None
    return found


def counts_of(folder: str) -> dict[Path, Counter[str]]:
    files = (Path(path, name) for path, _, names in os.walk(ROOT / folder) for name in names if name.endswith(".py"))
    return {file.relative_to(ROOT): counts(file.read_text(encoding="utf-8")) for file in files}


@pytest.mark.parametrize("folder", [pytest.param("prunerecover", marks=pytest.mark.slow), *list(MOST)[1:]])
def test_docstrings_are_in_plain_words(folder: str) -> None:
    files = counts_of(folder)
    total = sum(files.values(), Counter[str]())
    for part, most in MOST[folder].items():
        worst = sorted(files, key=lambda file: files[file][part] - most / 100 * files[file][WHOLE[part]])[-5:][::-1]
        said = ", ".join(f"{file} ({files[file][part]} of {files[file][WHOLE[part]]} {WHOLE[part]})" for file in worst)
        share = 100 * total[part] / total[WHOLE[part]]
        assert share <= most, f"Name things by nouns, first in {said}."
    asked = [str(file) for file, found in files.items() if found["questions"]]
    assert not asked, f"Open with a noun, not with a question word: {', '.join(asked)}."


def test_pages_are_in_plain_words() -> None:
    texts = {page: LINK.sub(" ", CODE.sub(" ", without_blocks(read(page)))).lower() for page in pages()}
    found = {page: (len(STAND_INS.findall(text)), len(re.findall(r"[a-z']+", text))) for page, text in texts.items()}
    worst = sorted(found, key=lambda page: found[page][0] - MOST_IN_PAGES / 100 * found[page][1])[-5:][::-1]
    share = 100 * sum(count for count, _ in found.values()) / sum(words for _, words in found.values())
    assert share <= MOST_IN_PAGES, f"Name things by nouns, first in {', '.join(worst)}."


def test_riddles_are_counted() -> None:
    function = "def f(x, y):\n    'Do `that`.\\n\\nArgs:\\n    x: Of which one.\\n    y: Path.'"
    source = f"'What it is.'\n{function}"
    assert counts(source) == {"words": 11, "stand-ins": 4, "descriptions": 2, "open": 1, "questions": 1}
