"""Long searches say how far they are: on a terminal, one bar at a time, on one rank."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
import rich
from cases.models.habits import Plain, dataset, tiny_vit
from cases.trainers import fit, prune
from lightning.pytorch.callbacks import TQDMProgressBar
from rich.console import Console
from rich.progress import Progress

from prunerecover import Budget, plan_depth, plan_width
from prunerecover.callbacks import WidthPrune
from prunerecover.callbacks.planning_progress import planning_progress
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
    [("one_shot", ("ranking units", "6/6", "fitting what units leave", "3/3")), ("greedy", ("one unit after", "3/3"))],
)
def test_searches_show_progress(terminal, search, shown):
    plan(search)
    assert all(text in terminal.getvalue() for text in shown)
    if search == "greedy":  # one bar, of the whole search
        assert "ranking units" not in terminal.getvalue()


def in_order(stages, shown):
    """Whether all are there, each for the first time after those before it."""
    first = [shown.find(stage) for stage in stages]
    return min(first) >= 0 and first == sorted(first)


def test_planning_in_depth_names_its_stages(terminal):
    plan_depth(tiny_vit(), Budget(params=0.2), batches=[dataset().tensors[0]])
    stages = ["planning depth", "running the dense network", "one unit after", "ranking units"]
    assert in_order([*stages, "fitting what units leave"], terminal.getvalue())


@pytest.mark.slow
def test_planning_in_width_names_its_stages(terminal):
    plan_width(tiny_vit(), Budget(latency=0.1), batches=[dataset().tensors], allocation="global")
    stages = ["planning width", "tracing the network", "measuring what units cost", "scoring units"]
    assert in_order([*stages, "measuring latency", "measuring what weights read"], terminal.getvalue())


def callbacks():
    return [prune(schedule=0, importance="output_divergence"), WidthPrune(Budget(macs=0.2), calibration=16, schedule=1)]


@pytest.mark.slow
def test_surgery_in_a_trainer_shows_at_once_what_it_does(terminal, tmp_path):
    fit(tmp_path, Plain(), *callbacks(), TQDMProgressBar(), enable_progress_bar=True)
    stages = ["DepthPrune: planning", "collecting calibration samples", "one unit after"]
    stages += ["WidthPrune: planning", "tracing the network", "weighing kinds"]
    assert in_order(stages, terminal.getvalue())


@pytest.mark.slow
def test_a_trainer_without_a_progress_bar_is_quiet(terminal, tmp_path):
    fit(tmp_path, Plain(), *callbacks(), enable_progress_bar=False)
    assert not terminal.getvalue()


def test_other_ranks_of_a_trainer_are_quiet(terminal):
    with planning_progress(SimpleNamespace(is_global_zero=False, progress_bar_callback=object()), "planning"):
        pass
    assert not terminal.getvalue()


def test_a_stage_gives_its_line_to_those_inside_and_gets_it_back(terminal):
    with progress("outer"):
        with progress("inner", 2) as advance:
            advance()
            with progress("hidden by the bar"):
                pass
        before = len(terminal.getvalue())
        with progress("another"):
            pass
    assert "hidden by the bar" not in terminal.getvalue()
    assert "1/2" in terminal.getvalue()
    assert "outer" in terminal.getvalue()[before:]


def test_nothing_where_there_is_no_terminal(capsys):
    plan("greedy")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK"])
def test_other_ranks_are_silent(terminal, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    plan("one_shot")
    assert not terminal.getvalue()


def test_works_beside_another_display(terminal):
    with Progress(console=rich.get_console()) as other, progress("ranking units", 1) as advance:
        advance()
        assert other.live.is_started


def test_the_next_bar_is_shown_after_an_error(terminal):
    with pytest.raises(ZeroDivisionError), progress("first", 1):
        raise ZeroDivisionError
    with progress("second", 1):
        pass
    assert "second" in terminal.getvalue()
