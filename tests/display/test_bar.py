"""The bar shares the terminal with other displays: a Trainer's around it, and a Trainer's inside."""

from __future__ import annotations

import pytest
import rich
from cases.models.habits import Plain, dataset, tiny_vit
from cases.trainers import fit, prune
from lightning.pytorch.callbacks import RichProgressBar
from rich.progress import Progress

from prunerecover import Budget, plan_pruning
from prunerecover.display.progress import beside_other_displays, progress


def test_a_display_that_throws_the_bar_out_does_no_harm(terminal):
    """For example the bar of a Trainer inside a user's function, which takes over the whole terminal."""
    anew = {"file": terminal, "force_terminal": True, "width": 100}
    for throw_out in (lambda console: console.clear_live(), lambda _: rich.reconfigure(**anew)):
        with progress("planning"):
            throw_out(rich.get_console())
            with Progress(console=rich.get_console()) as other:
                other.add_task("theirs")
        assert not rich.get_console()._live_stack
        assert not rich.get_console()._render_hooks
    assert "theirs" in terminal.getvalue()
    with progress("the next one"):
        pass
    assert "the next one" in terminal.getvalue()


def test_lines_take_the_place_of_a_bar_that_makes_room(terminal, said):
    with progress("planning"):
        with beside_other_displays():
            assert not rich.get_console()._live_stack
            said(1)
        assert rich.get_console()._live_stack
    assert said()[0] == "prunerecover: planning, 10 seconds so far."
    with beside_other_displays(), progress("alone"):
        assert rich.get_console()._live_stack


def bar_on(terminal):
    return RichProgressBar(console_kwargs={"file": terminal, "force_terminal": True, "width": 100})


@pytest.mark.slow
def test_a_trainer_inside_evaluate_shows_its_own_bar(tmp_path, terminal):
    def evaluate(trials):
        for _ in trials:
            fit(tmp_path, Plain(), bar_on(terminal), epochs=1, enable_progress_bar=True)
        return [50.0] * len(trials)

    plan = plan_pruning(tiny_vit(), Budget(macs=0.2), batches=[dataset().tensors], evaluate=evaluate)
    assert plan.edits
    assert all(text in terminal.getvalue() for text in ("planning depth and width", "Epoch 0/0"))


@pytest.mark.slow
def test_surgery_shows_its_bar_below_that_of_the_trainer(tmp_path, terminal):
    fit(
        tmp_path, Plain(), prune(schedule=1, importance="output_divergence"), bar_on(terminal), enable_progress_bar=True
    )
    assert 0 < terminal.getvalue().find("Epoch 0/1") < terminal.getvalue().find("DepthPrune: planning")
    assert not rich.get_console()._live_stack
