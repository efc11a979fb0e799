"""Long searches show their progress: a bar on a terminal, lines elsewhere, on one rank."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import rich
from cases.models.habits import Plain, dataset, tiny_vit
from cases.paths import ROOT
from cases.trainers import fit, prune
from lightning.pytorch.callbacks import TQDMProgressBar

from prunerecover import Budget, plan_depth
from prunerecover.callbacks import WidthPrune
from prunerecover.callbacks.planning.base import planning_progress
from prunerecover.display import stages
from prunerecover.display.progress import hidden, progress


@pytest.fixture
def clock(monkeypatch):
    """Return the monotonic clock of stages, stopped."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(stages, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    now.stage = lambda *args, **kwargs: stages.Stage(*args, **kwargs, started=now.seconds)
    return now


def plan(search):
    images = dataset().tensors[0]
    return plan_depth(tiny_vit(), remove={"attention": 2, "activation": 1}, batches=[images], search=search)


@pytest.mark.parametrize(
    ("search", "shown"),
    [("one_shot", ("choosing what units leave", "6/6", "ranking units")), ("greedy", ("one unit after", "3/3"))],
)
def test_searches_show_progress(terminal, search, shown):
    plan(search)
    assert all(text in terminal.getvalue() for text in shown)
    if search == "greedy":  # one bar, of the whole search
        assert "ranking units" not in terminal.getvalue()


def in_order(stages, shown):
    """Whether all stages appear, in order of their first appearance."""
    first = [shown.find(stage) for stage in stages]
    return min(first) >= 0 and first == sorted(first)


def test_planning_in_depth_names_its_stages(terminal):
    plan_depth(tiny_vit(), Budget(params=0.2), batches=[dataset().tensors[0]])
    stages = ["planning depth", "running the dense network", "fitting in order", "scoring variants"]
    assert in_order([*stages, "refining the choice"], terminal.getvalue())


def callbacks():
    depth = prune(schedule=0, importance="output_divergence", search="greedy")
    return [depth, WidthPrune(Budget(macs=0.2), calibration=16, schedule=1)]


@pytest.mark.slow
def test_surgery_in_a_trainer_shows_at_once_what_it_does(terminal, tmp_path):
    fit(tmp_path, Plain(), *callbacks(), TQDMProgressBar(), enable_progress_bar=True)
    stages = ["DepthPrune: planning", "collecting calibration samples", "tracing the network", "one unit after"]
    stages += ["WidthPrune: planning", "scoring variants", "refining the choice"]
    assert in_order(stages, terminal.getvalue())


@pytest.mark.slow
def test_a_trainer_without_a_progress_bar_is_quiet(terminal, tmp_path):
    fit(tmp_path, Plain(), *callbacks(), enable_progress_bar=False)
    assert not terminal.getvalue()


def test_other_ranks_of_a_trainer_are_quiet(terminal):
    with planning_progress(SimpleNamespace(is_global_zero=False, progress_bar_callback=object()), "planning"):
        pass
    assert not terminal.getvalue()


def test_stages_share_the_bar_of_the_outermost_one(terminal):
    with progress("outer"):
        with progress("inner", 2) as advance:
            advance()
            with progress("inside a counted one"):
                pass
        before = len(terminal.getvalue())
        with progress("another"):
            pass
    assert "inside a counted one" not in terminal.getvalue()
    assert "outer: inner" in terminal.getvalue()
    assert "1/2" in terminal.getvalue()
    assert "outer: another" in terminal.getvalue()[before:]


def test_a_narrow_terminal_shows_the_stage_and_not_the_whole(terminal):
    rich.get_console().width = 45
    with progress("planning depth"), progress("ranking units", 2):
        pass
    assert "ranking units" in terminal.getvalue()
    assert "planning depth: ranking" not in terminal.getvalue()


def test_nothing_where_there_is_no_terminal(capsys):
    plan("greedy")
    assert capsys.readouterr() == ("", "")


def test_lines_say_how_far_it_is_where_there_is_no_terminal(said):
    with progress("planning", expected=12_000), progress("ranking", 4) as advance:
        advance()
        said(2)
    first, then, *_ = said()
    assert first == "prunerecover: planning takes about 3 hours."
    assert then == "prunerecover: planning: ranking (1/4), 0% done, about 3 hours left."
    before = len(said())
    time.sleep(0.05)
    assert len(said()) == before  # it is over


def test_lines_go_to_stderr_where_nobody_has_set_up_logging(tmp_path):
    code = """
import time
from prunerecover.display import lines
from prunerecover.display.progress import progress
lines.EVERY = 0.1
with progress("planning"):
    time.sleep(0.5)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == ""
    assert set(done.stderr.splitlines()) == {"prunerecover: planning, 10 seconds so far."}


def test_what_takes_less_than_a_line_says_nothing_of_its_time(caplog):
    caplog.set_level(logging.INFO, "prunerecover")
    with progress("planning", expected=20):
        pass
    assert not caplog.records


def test_hidden_searches_say_nothing(said):
    with hidden(), progress("planning", expected=120):
        time.sleep(0.05)
    assert said() == []


def told(search):
    """Return the finished share, and the remaining seconds."""
    _, spent, left = search.state()
    return spent / (spent + left), left


def test_time_left_follows_the_expectation_until_there_is_a_pace(clock):
    search = stages.Stages([clock.stage("planning", expected=100)])
    clock.seconds += 20
    assert told(search) == (0.2, 80)
    search.under_way.append(steps := clock.stage("steps", 4, expected=80))
    clock.seconds += 40
    steps.advance()  # by its pace 120 more, as was expected 40
    assert told(search)[1] == 0.25 * 120 + 0.75 * 40  # more than is left of the whole as was expected, 40
    clock.seconds += 10
    steps.advance()
    steps.advance()
    steps.advance()
    assert told(search)[1] == 30
    search.under_way.pop()
    clock.seconds += 130
    assert told(search)[1] == stages.LATE * 200  # it is late, and not over


def test_without_an_expectation_the_outermost_known_stage_counts(clock):
    search = stages.Stages([clock.stage("planning"), clock.stage("splits", 5), clock.stage("units", 4)])
    assert search.state()[1:] == (0, None)
    assert str(search) == "planning: splits (0/5), 10 seconds so far"
    clock.seconds += 10
    search.under_way[-1].advance()
    assert search.state()[1:] == (10, 190)  # the first of five takes 40
    search.under_way.pop()
    assert search.state()[1:] == (10, None)
    search.under_way[-1].advance()
    assert str(search) == "planning: splits (1/5), 20% of this stage done, about 40 seconds of this stage left"


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK"])
def test_other_ranks_are_silent(terminal, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with progress("planning"):
        pass
    assert not terminal.getvalue()


def test_the_next_bar_is_shown_after_an_error(terminal):
    with pytest.raises(ZeroDivisionError), progress("first", 1):
        raise ZeroDivisionError
    with progress("second", 1):
        pass
    assert "second" in terminal.getvalue()
