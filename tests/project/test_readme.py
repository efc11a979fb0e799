"""The README and the index of results state figures of the pages that they link to, and link to what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README, INDEX = ROOT / "README.md", ROOT / "docs/results/README.md"
ROWS = [
    line.strip("|").split("|")
    for line in README.read_text().partition("## Measured")[2].splitlines()
    if line.startswith("|") and "](" in line
]


def linked(text: str) -> list[str]:
    return re.findall(r"\]\((?!http)([^)#]+)\)", text)


@pytest.mark.parametrize("page", [README, INDEX], ids=["README.md", "docs/results/README.md"])
def test_links_lead_somewhere(page: Path) -> None:
    links = linked(page.read_text())
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_of_results_is_in_the_index() -> None:
    pages = {path.name for path in INDEX.parent.glob("*.md")} - {INDEX.name}
    assert pages == {link for link in linked(INDEX.read_text()) if link.endswith(".md")}


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip()[:30] + row[1] for row in ROWS])
def test_measured_figures_are_those_of_the_page(row: list[str]) -> None:
    _, _, *found, link = (cell for cell in row)
    page = (ROOT / linked(link)[0]).read_text()
    known = {f"{float(number):.{digits}f}" for number in re.findall(r"\d+\.\d+", page) for digits in (1, 2, 3)}
    figures = [match[0] for cell in found if (match := re.search(r"\d+\.\d+", cell))]
    assert figures
    assert set(figures) <= known


def test_measured_fits_on_a_screen() -> None:
    assert 1 <= len(ROWS) <= 10
