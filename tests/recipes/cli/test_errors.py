"""Errors that a user can mend are a single line; bugs keep their traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prunerecover import Budget
from prunerecover.recipes.cli import main as front_door
from prunerecover.recipes.cli.errors import can_be_mended, told_to_user
from prunerecover.recipes.cli.main import main

DEPTH = ["--method=depth"]
QUICK = ["--trainer.logger=false", "--trainer.enable_progress_bar=false"]


def raised(cause: type[Exception], message: str) -> Exception:
    try:
        raise cause(message)
    except cause as error:
        return error


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        status = main(arguments)
    except SystemExit as stopped:
        status = stopped.code
    assert status == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "Seed set" not in line]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--method", "nope"], "--method to be depth, graph, boundary, .* or a class path, but got 'nope'"),
        (["plan", "--method=pudding"], "required: tasks, blocks. `prunerecover plan --method.help NAME` lists"),
        (["plan", "--method=nope.Class"], "given class_path 'nope.Class': No module named 'nope'"),
        (["fit", "--model", "nope.Class"], 'key "model": .*No module named .nope.*Given value: nope.Class'),
        (["fit", "--trainer.max_epochs=many"], "max_epochs.*Expected a <class 'int'>. Given value: many"),
        (["fit", "--nope=3"], "unrecognized arguments: --nope=3. `prunerecover fit --help` lists the options"),
        (["fit", "--ckpt_path=none.ckpt"], "Expected a checkpoint at --ckpt_path none.ckpt, but there is none"),
        (["test", "--ckpt_path=text.ckpt"], "ckpt_path text.ckpt, but it is no file of torch.save, or cut off"),
        (["plan", *DEPTH], "Expected exactly one of remove and ratio, or .* but got none"),
    ],
)
def test_one_line(arguments: list[str], message: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "text.ckpt").write_text("no checkpoint")
    command, *options = arguments
    assert re.search(message, error_of([command, "--config", "digits_vit_depth", *QUICK, *options], capsys))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("rank=banana", "Parser key \"rank\": Expected a <class 'int'>. Got value: banana. `prunerecover fit --help`"),
        ("rank=-3", "error: Expected argument rank of LoRARecover in its range, but got -3: Input should be"),
    ],
)
def test_a_callbacks_option(option: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--trainer.default_root_dir", str(tmp_path)]
    given = ["fit", "--config", "digits_vit_lora", *QUICK, *where, f"--trainer.callbacks.LoRARecover.{option}"]
    told = error_of(given, capsys)
    assert message in told
    assert "Namespace" not in told


@pytest.mark.parametrize("cause", [TypeError, ValueError, KeyError])
def test_bugs_keep_their_traceback(cause: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_door, "_runner", lambda _: lambda **_: int(cause("Expected nothing")))  # type: ignore
    with pytest.raises(TypeError):
        main(["report", "nothing"])


def test_refusals_are_told_from_bugs() -> None:
    with pytest.raises(ValueError, match="exactly one") as ours:
        Budget()
    assert can_be_mended(ours.value)
    assert can_be_mended(raised(FileNotFoundError, "no such file"))
    assert not can_be_mended(raised(ValueError, "Expected by somebody else"))


def test_what_a_library_wraps_is_found() -> None:
    outer = raised(ValueError, "Expected by somebody else")
    outer.__cause__ = raised(FileNotFoundError, "no such file")
    assert told_to_user(outer) is outer.__cause__
    assert told_to_user(raised(ValueError, "Expected by somebody else")) is None
