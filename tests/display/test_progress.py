"""Long searches say how far they are: on a terminal, one bar at a time, on one rank."""

from __future__ import annotations

import io

import pytest
import rich
from cases.models.habits import dataset, tiny_vit
from rich.console import Console
from rich.progress import Progress

from prunerecover import plan_depth
from prunerecover.display.progress import progress


@pytest.fixture
def terminal(monkeypatch):
    """A console that believes it is a terminal; what it shows."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(rich, "_console", console)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return console.file


def plan(search):
    images = dataset().tensors[0]
    return plan_depth(tiny_vit(), remove={"attention": 2, "activation": 1}, batches=[images], search=search)


@pytest.mark.parametrize(
    ("search", "shown"),
    [("one_shot", ("ranking units", "8/8", "fitting what units leave", "3/3")), ("greedy", ("one unit after", "3/3"))],
)
def test_searches_show_progress(terminal, search, shown):
    plan(search)
    assert all(text in terminal.getvalue() for text in shown)
    if search == "greedy":  # one bar, of the whole search
        assert "ranking units" not in terminal.getvalue()


def test_nothing_where_there_is_no_terminal(capsys):
    plan("greedy")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK"])
def test_other_ranks_are_silent(terminal, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    plan("one_shot")
    assert not terminal.getvalue()


def test_works_beside_another_display(terminal):
    with Progress(console=rich.get_console()), progress("ranking units", 1) as advance:
        advance()


def test_the_next_bar_is_shown_after_an_error(terminal):
    with pytest.raises(ZeroDivisionError), progress("first", 1):
        raise ZeroDivisionError
    with progress("second", 1):
        pass
    assert "second" in terminal.getvalue()
