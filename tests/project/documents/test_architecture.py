"""docs/architecture.md and CONTRIBUTING: the path of a batch is the real one, and all named places exist."""

from __future__ import annotations

import operator
import re
import sys
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from cases.docs.blocks import read
from cases.docs.setups import OwnModule, own_loader, own_trainer
from cases.models.tiny import tiny_timm
from cases.paths import ROOT

from prunerecover import Budget
from prunerecover.callbacks import Prune

STEPS = re.findall(r"^\| \d+ \| `(\S+)` \| `(\S+)` \|", read("docs/architecture.md"), re.MULTILINE)

ADDED = [line for line in read("CONTRIBUTING.md").partition("## Add something")[2].splitlines() if line[:3] == "| a"]


@pytest.mark.parametrize("line", ADDED, ids=lambda line: line.split("|")[1].split("(")[0].strip())
def test_places_of_what_is_added_are_there(line: str) -> None:
    _, _, folder, entered, tests, _ = line.split("|")
    assert all((ROOT / name.strip(" `")).is_dir() for name in (folder, tests))
    for name, path in re.findall(r"`([\w.]+)` of `([\w/]+).py`", entered):
        module = import_module(f"prunerecover.{path.replace('/', '.')}")
        assert operator.attrgetter(name)(module)


@pytest.mark.slow
def test_a_batch_takes_the_path_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entered: dict[CodeType, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.setdefault(frame.f_code)

    module = OwnModule()
    module.net = tiny_timm(depth=2, num_classes=4)
    trainer = own_trainer([Prune(Budget(macs=0.3), calibration=16)])
    sys.setprofile(note)
    try:
        trainer.fit(module, own_loader())
    finally:
        sys.setprofile(None)
    files = (code.co_filename.removeprefix(f"{ROOT}/").removeprefix("prunerecover/") for code in entered)
    path = list(zip(files, (code.co_qualname for code in entered), strict=True))
    assert len(STEPS) == 10
    assert [step for step in path if step in STEPS] == STEPS
