"""Documents from a reader's view: blocks of code, commands, and ways to run both."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from cases.paths import ROOT

from prunerecover.recipes.cli.main import main

BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
README = "README.md"
RESULTS = "docs/results/"


@dataclass(frozen=True)
class Block:
    """Block of code.

    Attributes:
        language: Language of the fence.
        text: Lines of the block.
        section: Heading above the block.
        line: Number of the first line in the page.
    """

    language: str
    text: str
    section: str
    line: int

    @property
    def file(self) -> str | None:
        """File name in the first line; None: the block is typed."""
        found = re.match(r"# (\w+\.(?:py|yaml))\n", self.text)
        return found and found[1]


def pages() -> list[str]:
    """Return the paths of all documents except the pages of results, the output of benchmarks."""
    found = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return [README, *(page for page in found if not page.startswith(RESULTS))]


def read(page: str) -> str:
    return (ROOT / page).read_text()


def blocks_of(text: str) -> list[Block]:
    found = []
    for match in BLOCK.finditer(text):
        indent, language, code = match.groups()
        above = HEADING.findall(BLOCK.sub("", text[: match.start()]))
        plain = re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)
        found.append(Block(language, plain, above[-1] if above else "", text[: match.start()].count("\n") + 2))
    return found


def without_blocks(text: str) -> str:
    return BLOCK.sub("", text)


def commands_of(block: Block) -> Iterator[list[str]]:
    """Yield the commands of a shell block as words, without comments, and with continued lines joined."""
    for line in block.text.replace("\\\n", " ").splitlines():
        for command in line.split(" && "):
            if words := shlex.split(command, comments=True):
                yield words


def run_saved(block: Block, folder: Path) -> None:
    """Follow a block of a page of files as a reader does: save the file, run the Python, or type the commands."""
    if block.language == "bash":
        for program, *arguments in commands_of(block):
            assert program == "prunerecover"
            assert main(arguments) == 0
        return
    assert block.file, block
    path = folder / block.file
    path.write_text(block.text)
    if block.language == "python":
        runpy.run_path(str(path), run_name="__main__")


def run_typed(
    page: str,
    folder: Path,
    given: Mapping[str, Callable[[], Mapping[str, Any]]],
    replaced: Mapping[str, str],
    needs: Mapping[str, str],
) -> dict[str, Any]:
    """Run a page's Python from top to bottom in a single namespace, in the working directory; return the namespace.

    Args:
        page: Path in the repository.
        folder: Folder for sources, for code that reads them.
        given: Names of a reader before the first block, by heading.
        replaced: Local replacements of names on the hub.
        needs: Library by heading; without it, the code under the heading is left out, with a warning.
    """
    module = ModuleType("document")
    sys.modules["document"] = module
    namespace, section = vars(module), None
    try:
        for block in blocks_of(read(page)):
            if block.section != section:
                section = block.section
                namespace.update(given.get(section, dict)())
            if block.language != "python":
                continue
            if block.section in needs and not find_spec(needs[block.section]):
                warnings.warn(f"'{block.section}' of {page} was not run: it needs {needs[block.section]}", stacklevel=2)
                continue
            text = block.text
            for name, stands_for in replaced.items():
                text = text.replace(name, stands_for)
            source = folder / f"block_{block.line}.py"
            source.write_text(text)
            if block.file:  # a script of its own
                (folder / block.file).write_text(text)
                continue
            exec(compile(text, str(source), "exec"), namespace)
        return dict(namespace)
    finally:
        del sys.modules["document"]
