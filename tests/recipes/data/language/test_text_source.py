"""A name picks one data set out of a local folder of several, as it does on the hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases.models.language import write_jsonl

from prunerecover.recipes.data.language.text_source import open_text

pytestmark = pytest.mark.usefixtures("own_cache")


def texts(path: Path, name: str | None) -> dict[str, list[str]]:
    return {split: sorted(rows["text"]) for split, rows in open_text(str(path), name).items()}


def test_a_subfolder_is_a_configuration(tmp_path: Path) -> None:
    """As in a copy of a repository of the hub."""
    for name in ("Easy", "Hard"):
        for split in ("train", "test"):
            write_jsonl(tmp_path / "repo" / name / f"{split}-00000-of-00001.jsonl", [f"{name} {split}"])
    assert texts(tmp_path / "repo", "Easy") == {"train": ["Easy train"], "test": ["Easy test"]}
    assert texts(tmp_path / "repo", None)["train"] == ["Easy train", "Hard train"]


def test_files_begin_with_the_name(tmp_path: Path) -> None:
    for file in ("arc.train", "arc.test-0", "arc.test-1", "arc_c.test", "arcade.train", "piqa.validation"):
        write_jsonl(tmp_path / "all" / f"{file}.jsonl", [file])
    assert texts(tmp_path / "all", "arc") == {"train": ["arc.train"], "test": ["arc.test-0", "arc.test-1"]}
    assert texts(tmp_path / "all", "piqa") == {"validation": ["piqa.validation"]}


def test_a_name_that_no_file_has_is_the_hubs(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "own" / "train.jsonl", ["mine"])
    assert texts(tmp_path / "own", "wikitext-2-raw-v1") == {"train": ["mine"]}
