"""Documents: the code runs, the commands parse, the links lead somewhere, the figures are measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import warnings
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from cases.docs.blocks import RESULTS, blocks_of, commands_of, pages, read, run_typed, without_blocks
from cases.docs.command_parser import command_parser
from cases.docs.figures import is_stated
from cases.docs.setups import GIVEN, NEEDS, SLOW, TAIL, replaced_in
from cases.paths import ROOT
from lightning.pytorch.cli import LightningArgumentParser

from benchmarks.project.recipe_table import markdown, read_recipe
from prunerecover.recipes.cli.callback_options import with_callback_options
from prunerecover.recipes.cli.main import build_parser, recipe_names, with_recipe_paths
from prunerecover.recipes.cli.names import with_method_class
from prunerecover.recipes.cli.trainer_commands import TRAINER_COMMANDS

SAVED = {"docs/extending.md": "test_extending.py", "docs/prune_yolo.md": "test_prune_yolo.py"}  # pages of whole files
BEGUN = "docs/index.md"  # types what README begins with
TYPED = [page for page in pages() if page not in {*SAVED, BEGUN} and "```python" in read(page)]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
NO_FIGURE = re.compile(r"`[^`]*`|\]\([^)]*\)|Apache-2\.0|arXiv\s[\d.]+|(?:Lightning|Python|lm_eval|ultralytics) [\d.]+")
COMMANDS = [
    pytest.param(words, id=" ".join(words)[:60])
    for page in pages()
    if page != "docs/extending.md"  # its commands are typed, in test_extending.py
    for block in blocks_of(read(page))
    if block.language == "bash"
    for words in commands_of(block)
]


# Warnings that a reader of README can act on: a busy computer, a network of their own, a folder used twice.
HIS = "not have many workers|number of training batches|GPU available|in eval mode|is not empty|Expected nothing at"
HIS += "|of the latency for a budget of"


@pytest.mark.parametrize("page", [pytest.param(p, marks=pytest.mark.slow if p in SLOW else ()) for p in TYPED])
def test_python_of_a_page_runs(page: str, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """README prints only warnings that its reader can act on."""
    monkeypatch.chdir(tmp_path)
    if page == "README.md":
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", f".*({HIS})")
    namespace = run_typed(page, tmp_path, GIVEN.get(page, {}), replaced_in(page, tmp_path), NEEDS)
    exec(f"import os; {TAIL.get(page, '')}", namespace)


def test_the_first_page_types_what_readme_begins_with() -> None:
    python = [[block for block in blocks_of(read(page)) if block.language == "python"] for page in (BEGUN, "README.md")]
    first, whole = ([block.text for block in blocks] for blocks in python)
    assert first == whole[: len(first)]


def test_pages_of_files_have_tests_of_their_own() -> None:
    for page, test in SAVED.items():
        assert Path(page).name in (ROOT / "tests/project" / test).read_text()


@pytest.fixture(scope="module")
def parser() -> LightningArgumentParser:
    return command_parser()


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_parses(words: list[str], parser: LightningArgumentParser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["prunerecover"])
    program, *arguments = words
    if program == "prunerecover" and arguments[0] in TRAINER_COMMANDS:
        with suppress(SystemExit) if "--print_config" in arguments else nullcontext():
            parser.parse_args(with_callback_options(with_method_class(with_recipe_paths(arguments))))
    elif program == "prunerecover":
        build_parser().parse_args(arguments)
    elif words[:2] == ["pip", "install"]:
        extras = {name for word in words for name in re.findall(r"(?:^\.|prunerecover)\[(.+)\]", word)}
        assert extras <= tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"].keys()
    elif words[:2] == ["python", "-m"]:
        assert find_spec(words[2])
    else:
        assert words in (["pytest"], ["mkdocs", "serve"], ["mkdocs", "build", "--strict"])


@pytest.mark.parametrize("words", [command for command in COMMANDS if "plan" in command.values[0]])
def test_a_network_that_its_recipe_trains_is_planned_for_with_weights(words: list[str]) -> None:
    assert "--ckpt_path" in words or not any(word.startswith("digits_") for word in words)


def anchors_of(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", without_blocks(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("wrong", ["--config no_such_recipe", "--config digits_vit_depth --trainer.epochs 2"])
def test_a_wrong_command_does_not_parse(wrong: str, parser: LightningArgumentParser) -> None:
    with pytest.raises((SystemExit, ValueError)):
        parser.parse_args(with_recipe_paths(["fit", *wrong.split()]))


@pytest.mark.parametrize("page", [*pages(), RESULTS + "README.md"])
def test_links_lead_somewhere(page: str) -> None:
    for link, anchor in LINK.findall(without_blocks(read(page))):
        target = (ROOT / page).parent / link if link else ROOT / page
        assert target.exists(), link
        if anchor and "/api/" not in target.as_posix():
            assert anchor in anchors_of(target), f"{link}#{anchor}"


def passages(text: str) -> list[str]:
    """Return the common contexts of a figure and its link: paragraphs, items of lists, rows of tables."""
    found = re.split(r"\n\s*\n|\n(?=\s*(?:[-*|] |\d+\. ))", without_blocks(text))
    return [passage for passage in found if passage.strip()]


CHECKED = [page for page in pages() if page not in ("docs/support.md", "docs/recipes.md", *SAVED)]


def unstated(passage: str, folder: Path) -> list[str]:
    """Return the figures with decimals that are absent from all linked pages of results."""
    figures = re.findall(r"(?<![\w.])-?\d+\.\d+(?: [MG]\b)?", NO_FIGURE.sub("", passage))
    linked = [link for link, _ in LINK.findall(passage) if "results/" in link and link.endswith(".md")]
    results = "\n".join((folder / link).read_text() for link in linked)
    return [figure for figure in figures if not is_stated(figure, results)]


@pytest.mark.parametrize("page", CHECKED)
def test_a_figure_is_one_of_a_page_of_results_that_is_linked_beside_it(page: str) -> None:
    for passage in passages(read(page)):
        assert unstated(passage, (ROOT / page).parent) == [], passage


def test_figures_without_a_page_are_found() -> None:
    text = "From 55.66 to 51.08 ([page](results/deit_tiny_recovery.md)).\n- Then 51.08.\n\narXiv 2607.03784, `0.5`"
    assert [unstated(passage, ROOT / "docs") for passage in passages(text)] == [[], ["51.08"], []]


@pytest.mark.slow
def test_the_script_for_two_processes_runs_on_two(tmp_path: Path) -> None:
    (script,) = (block for block in blocks_of(read("docs/several_gpus.md")) if block.file)
    (tmp_path / "sharded.py").write_text(script.text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "sharded.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "4 blocks" in done.stdout


def test_the_table_of_recipes_is_made_of_their_headers() -> None:
    assert read("docs/recipes.md") == markdown(ROOT / "configs"), "python -m benchmarks.project.recipe_table"


def test_every_recipe_is_in_the_table() -> None:
    assert set(re.findall(r"^\| `(\w+)`", read("docs/recipes.md"), re.MULTILINE)) == set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_was_run_or_says_what_it_would_take(name: str) -> None:
    recipe = read_recipe(ROOT / f"configs/{name}.yaml")
    linked = "".join(map(read, re.findall(RESULTS + r"\w+\.md", recipe.measured)))
    figures = re.findall(r"\d\.\d+", recipe.measured)
    assert figures if recipe.measured else "(estimated" in recipe.where
    for one in figures:
        assert is_stated(one, linked) or is_stated(f"{100 * float(one):.1f}", linked), one


def test_a_header_of_another_form_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("# prunerecover fit --config own\nseed_everything: 1\n")
    with pytest.raises(ValueError, match="Expected own.yaml to open with its command, what was measured or"):
        markdown(tmp_path)


def test_the_navigation_names_every_page() -> None:
    text = re.sub(r"!!\S+", "", read("mkdocs.yml"))

    def named(entry: object) -> set[str]:
        if isinstance(entry, str):
            return {entry}
        values = entry.values() if isinstance(entry, dict) else entry
        assert isinstance(entry, dict | list)
        return set().union(*map(named, values))

    found = (path for ending in ("md", "ipynb") for path in (ROOT / "docs").rglob(f"*.{ending}"))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in found}
    assert named(yaml.safe_load(text)["nav"]) == written


@pytest.mark.slow
@pytest.mark.skipif(not (find_spec("mkdocs") and find_spec("mkdocstrings")), reason="needs pip install .[docs]")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "site" / "api" / "callbacks" / "index.html").is_file()
