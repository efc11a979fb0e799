"""The README and the index of results state figures of their linked pages, and all links lead to existing pages."""

from __future__ import annotations

import json
import re

import pytest
from cases.docs.figures import is_stated
from cases.paths import ROOT

README, INDEX = ROOT / "README.md", ROOT / "docs/results/README.md"
ROWS = [
    line.strip("|").split("|")
    for line in README.read_text().partition("## Measured")[2].splitlines()
    if line.startswith("|") and "](" in line
]
FIRST_TABLE = [line for line in README.read_text().partition("## Set up")[0].splitlines() if line.startswith("|")]


PARAGRAPHS = [part for part in README.read_text().split("\n\n") if "](docs/results/" in part and "|" not in part]


def linked(text: str) -> list[str]:
    return re.findall(r"\]\((?!http)([^)#]+)\)", text)


def test_every_page_of_results_is_in_the_index() -> None:
    pages = {path.name for path in INDEX.parent.glob("*.md")} - {INDEX.name}
    assert pages == {link for link in linked(INDEX.read_text()) if link.endswith(".md")}


def test_figures_are_looked_up() -> None:
    page = "5,717,416 parameters (-32.41%), top-1 55.66"
    assert all(is_stated(figure, page) for figure in ("5.72 M", "-32.4", "55.7", "55.66"))
    assert not any(is_stated(figure, page) for figure in ("5.73 M", "32.4", "55.6", "5.72 G", "55.67"))


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip()[:30] + row[1] for row in ROWS])
def test_measured_figures_are_those_of_the_page(row: list[str]) -> None:
    task, _, *found, link = row
    page = (ROOT / linked(link)[0]).read_text()
    figures = [re.findall(r"\d+\.\d+", cell) for cell in (task, *found)]
    assert figures[1]
    assert [figure for cell in figures for figure in cell if not is_stated(figure, page)] == []


@pytest.mark.parametrize("line", FIRST_TABLE[2:], ids=lambda line: line.split("|")[1].strip())
def test_figures_of_the_first_screen_are_those_of_its_page(line: str) -> None:
    page = (ROOT / "docs/results/natural_call.md").read_text()
    cells = line.partition("|")[2].partition("|")[2]
    figures = re.findall(r"-?\d+(?:\.\d+)?(?: [MG])?", cells)
    assert len(figures) >= 3
    assert [figure for figure in figures if not is_stated(figure, page)] == []


@pytest.mark.parametrize("paragraph", PARAGRAPHS, ids=[part[:30] for part in PARAGRAPHS])
def test_figures_of_paragraphs_are_those_of_their_pages(paragraph: str) -> None:
    pages = [(ROOT / link).read_text() for link in linked(paragraph) if link.endswith(".md")]
    figures = re.findall(r"\d+\.\d+", paragraph)
    assert [figure for figure in figures if not any(is_stated(figure, page) for page in pages)] == []


def test_every_page_with_figures_of_the_readme_has_its_rows_and_command() -> None:
    links = {link for link in linked(README.read_text()) if link.startswith("docs/results/")}
    for link in sorted(links - {"docs/results/README.md"}):
        page = (ROOT / link).with_suffix(".md")
        rows = json.loads(page.with_suffix(".json").read_text())
        assert rows["rows"], link
        assert rows["runs"], link
        assert all(f"- `{run['command']}`" in page.read_text() for run in rows["runs"]), link


def test_measured_fits_on_a_screen() -> None:
    assert 1 <= len(ROWS) <= 10
