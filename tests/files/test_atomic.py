"""A file or folder is the old one or the new one, whatever happens while it is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cases.files.kills import killed_at_rename

from prunerecover.files.atomic import atomic_file, atomic_folder, whole_folder, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "page.md"
    write_text(path, "old")
    with atomic_file(path) as unfinished:
        unfinished.write_text("new ü", encoding="utf-8")
        assert path.read_text() == "old"
        assert unfinished.suffix == ".md"
    assert path.read_text(encoding="utf-8") == "new ü"
    assert names(path.parent) == ["page.md"]


def test_writing_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    write_text(tmp_path / "page.md", "old")
    with pytest.raises(OSError, match="disk full"), atomic_file(tmp_path / "page.md"):
        raise OSError("disk full")
    assert names(tmp_path) == ["page.md"]
    assert (tmp_path / "page.md").read_text() == "old"


def test_a_killed_process_leaves_the_old_file(tmp_path: Path) -> None:
    write_text(tmp_path / "page.md", "old")
    assert killed_at_rename(0, lambda: write_text(tmp_path / "page.md", "new"))
    assert (tmp_path / "page.md").read_text() == "old"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    write_text(tmp_path / "page.md", "old")
    (tmp_path / "link.md").symlink_to("page.md")
    write_text(tmp_path / "link.md", "new")
    assert (tmp_path / "link.md").is_symlink()
    assert (tmp_path / "page.md").read_text() == "new"


def test_a_device_is_written_to(tmp_path: Path) -> None:
    write_text(os.devnull, "text")
    assert not Path(os.devnull).is_file()


def write_folder(path: Path, text: str) -> None:
    with atomic_folder(path) as folder:
        (folder / "a").write_text(text)
        (folder / "b").write_text(text)


def contents(path: Path) -> set[str]:
    return {file.read_text() for file in whole_folder(path).iterdir()}


@pytest.mark.parametrize(("kill", "left"), [(0, "old"), (1, "new")])
def test_a_folder_is_never_a_mix(kill: int, left: str, tmp_path: Path) -> None:
    path = tmp_path / "pruned"
    write_folder(path, "old")
    assert killed_at_rename(kill, lambda: write_folder(path, "new"))
    assert contents(path) == {left}
    write_folder(path, "newer")
    assert contents(path) == {"newer"}
    assert not [name for name in names(tmp_path) if name.endswith(".old")]


def test_a_folder_that_fails_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk full"), atomic_folder(tmp_path / "pruned"):
        raise OSError("disk full")
    assert not names(tmp_path)
    assert whole_folder(tmp_path / "nowhere" / "pruned") == tmp_path / "nowhere" / "pruned"
