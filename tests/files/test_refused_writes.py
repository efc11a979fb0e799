"""What the system refuses to write is told by the folder and a way out, whatever is saved."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from cases.tiny_plans import pruned
from torch import nn

from prunerecover import Plan, save_pruned
from prunerecover.files.refused_writes import naming_the_folder
from prunerecover.plan.edits import Replace
from prunerecover.store.search_store import SearchStore

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
    """A disk on which no file can be larger, as on one that is full."""
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
