"""A file or folder is always entirely old or new; errors of the system are reported with a way out."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from cases.files.kills import killed_at_rename
from cases.tiny_plans import pruned
from torch import nn

from prunerecover import Plan, save_pruned
from prunerecover.files.atomic import atomic_file, atomic_folder, whole_folder, write_text
from prunerecover.files.refused_writes import naming_the_folder
from prunerecover.plan.edits import Replace
from prunerecover.store.search_store import SearchStore


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


def test_writing_that_fails_or_is_killed_leaves_the_old_file_alone(tmp_path: Path) -> None:
    write_text(tmp_path / "page.md", "old")
    with pytest.raises(OSError, match="disk full"), atomic_file(tmp_path / "page.md"):
        raise OSError("disk full")
    assert names(tmp_path) == ["page.md"]
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


TOLD = r"Expected to write {name} in {folder}, but the system refuses: {why}. What was there is as it was. Make room"


def save_plan(folder: Path) -> None:
    edit = Replace(unit="a", kind="attention", leaves="constant", tensors=("e0.bias",))
    Plan(edits=(edit,)).with_tensors({"e0.bias": torch.zeros(99_999)}).save(folder / "plan.json")


def save_folder(folder: Path) -> None:
    save_pruned(*pruned("attention zero"), folder / "pruned")


def save_result(folder: Path) -> None:
    store = SearchStore(folder)
    store.begin(nn.Identity(), seen={})
    store.result("scores", (), lambda: torch.zeros(99_999))


SAVES = {"plan.safetensors": save_plan, "pruned": save_folder, r"\w+.pt": save_result}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size of files, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", SAVES)
def test_a_full_disk(name: str, tmp_path: Path) -> None:
    told = TOLD.format(name=name, folder=tmp_path, why="File too large")
    with pytest.raises(OSError, match=told), largest_file(4096):
        SAVES[name](tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("save", SAVES.values())
def test_a_folder_that_takes_nothing(
    save: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)  # nobody is refused a folder by its rights who runs tests as root
    with pytest.raises(OSError, match=TOLD.format(name=".*", folder=tmp_path, why="Read-only file system")):
        save(tmp_path)


def test_a_plan_in_the_place_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(
        IsADirectoryError, match=TOLD.format(name=tmp_path.name, folder=tmp_path.parent, why="Is a directory")
    ):
        Plan().save(tmp_path)
    with pytest.raises(OSError, match="Expected to write x{80} in .*, but the system refuses: File name too long"):
        save_pruned(*pruned("attention zero"), tmp_path / ("x" * 300))


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such file"), naming_the_folder(Path("a")):
        Path("/nowhere/at/all").read_text()
    elsewhere = PermissionError(errno.EACCES, "Permission denied", "/data/table.bin")
    with pytest.raises(PermissionError, match="'/data/table.bin'"), naming_the_folder(tmp_path / "file"):
        raise elsewhere
    with pytest.raises(ValueError, match="^explained$"), naming_the_folder(tmp_path / "file"):
        raise ValueError("explained") from PermissionError(errno.EACCES, "Permission denied")
