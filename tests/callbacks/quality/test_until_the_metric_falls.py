"""Steps in a fit: kept while the metric holds, rolled back otherwise, and recovered from until the end."""

from __future__ import annotations

import copy
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from cases.engine import equal
from cases.fits.quality import Sized, one_by_one, pruned, trail_of
from cases.models.habits import loader
from cases.trainers import every_epoch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from prunerecover import Plan, PruneReport, Quality, WidthPrune, load_pruned
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.schedules.validation import validate
from prunerecover.model.hashing import tensors_hash
from prunerecover.report.report import Report

SETTINGS = {"calibration": 16, "merge": "never"}


def verdicts(module) -> list[tuple[int, float | None, bool | None]]:
    return [(step.epoch, step.recovered, step.kept) for step in trail_of(module).steps]


class Look(pl.Callback):
    """Notes values and moments in the first step after the one that was taken back."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == 2 and batch_idx == 0:
            (optimizer,) = trainer.optimizers
            self.values, self.states = copy.deepcopy((pl_module.state_dict(), optimizer.state_dict()["state"]))
            self.rates = [group["lr"] for group in optimizer.param_groups]
            held = {p for group in optimizer.param_groups for p in group["params"]}
            self.holds_all = held == set(pl_module.parameters())


class Table(PruneReport):
    """Skips the slow drawing of figures."""

    def _figures(self, *arguments):
        return {}


def fell(folder: Path, kind: str) -> tuple[Path, pl.LightningModule, pl.Trainer, Look]:
    """Return a fit whose second step is taken back."""
    look = Look()
    callbacks = [one_by_one(merge="copy"), Table(pairs=0), look, every_epoch(folder)]
    return folder, *pruned(folder, *callbacks, make=lambda: Sized(optimizer=kind)), look


@pytest.fixture(scope="module")
def fallen(tmp_path_factory):
    return fell(tmp_path_factory.mktemp("fallen"), "adamw")


def test_the_step_after_which_the_metric_falls_is_taken_back(fallen):
    folder, module, trainer, _ = fallen
    assert verdicts(module) == [(0, 2.0, True), (1, 1.0, False)]
    assert (trail_of(module).dense, trail_of(module).worst) == (3.0, 2.0)
    assert trail_of(module).ended == "the metric fell"
    assert [event.epoch for event in Ledger.of(module).events] == [0]
    assert Ledger.of(module).removed_units == 1
    assert trainer.current_epoch == 4  # the network that was kept is recovered until the end
    assert len(Plan.load(folder / "plan.json").removed["attention"]) == 1


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_network_and_moments_of_before_the_step_come_back(kind, fallen, tmp_path):
    """Restored from the file of the epoch before, except for the learning rate, which follows the present schedule."""
    folder, *_, look = fallen if kind == "adamw" else fell(tmp_path, kind)
    before, later = (torch.load(folder / f"epoch={epoch}.ckpt", weights_only=True) for epoch in (0, 1))
    assert equal(look.values, before["state_dict"])
    assert equal(look.states, before["optimizer_states"][0]["state"])
    assert look.holds_all
    assert look.rates == [group["lr"] for group in later["optimizer_states"][0]["param_groups"]]


def test_other_files_are_tested_as_they_are_and_the_module_ends_as_it_was_kept(fallen):
    folder, module, trainer, _ = fallen
    again = copy.deepcopy(module)
    for epoch, there in ((1, 1), (0, 2), (3, 2), (1, 1)):
        file = folder / f"epoch={epoch}.ckpt"
        (logged,) = trainer.validate(again, loader(shuffle=False), ckpt_path=file, verbose=False)
        assert logged["attentions"] == there


def test_what_was_taken_back_is_in_no_pruned_copy(fallen):
    folder, module, *_ = fallen
    images, _ = next(iter(loader(shuffle=False)))
    with torch.no_grad():
        assert torch.allclose(load_pruned(folder / "pruned").eval()(images), module.net.eval()(images), atol=1e-5)


def test_the_report_has_a_table_of_the_steps(fallen):
    report = Report.load(fallen[0] / "report" / "report.json")
    assert [step.kept for step in report.quality.steps] == [True, False]
    text = (fallen[0] / "report" / "report.md").read_text()
    assert "| 1 | 2 attention |" in text
    assert "| 1 | 1 | taken back |" in text
    assert "`attentions` was 3 before the first step; 2 was asked for. No other step came: the metric fell." in text


def test_the_first_step_may_be_taken_back_to_the_dense_network(tmp_path):
    module, _ = pruned(tmp_path, one_by_one(drop=0.5))
    assert verdicts(module) == [(0, 2.0, False)]
    assert Ledger.of(module).is_dense
    assert tensors_hash(module.net) == tensors_hash(Sized().net)


FOUND = [(0, 2.0, True), (1, 1.0, True), (2, 0.0, True)]  # steps for a metric with any allowed drop
NOTHING = "nothing more can go: Expected VisionTransformer to have units of kind attention that may go, but the"
EVERY_SECOND, LATER = {"schedule": {"start": 1, "every": 2}}, [(1, 2.0, True), (3, 1.0, False)]


@pytest.mark.parametrize(
    ("arguments", "settings", "found", "ended"),
    [
        ({"drop": 3}, {"epochs": 3}, FOUND[:2], "no epochs are left to recover from another step"),
        ({}, {"fast_dev_run": True}, FOUND[:1], None),
        pytest.param({"drop": 3}, {"epochs": 6}, FOUND, NOTHING, marks=pytest.mark.slow),
        pytest.param(EVERY_SECOND, {"epochs": 6}, LATER, "the metric fell", marks=pytest.mark.slow),
    ],
    ids=["until the last epoch", "in a trial run", "until nothing more can go", "with two epochs to recover in"],
)
def test_steps_are_begun_as_long_as_they_can_be_judged(tmp_path, arguments, settings, found, ended):
    module, _ = pruned(tmp_path, one_by_one(**arguments), **settings)
    assert verdicts(module) == found
    assert (trail_of(module).ended or "").startswith(ended or "")


@pytest.mark.slow
def test_a_longer_fit_goes_on_with_further_steps(tmp_path):
    pruned(tmp_path, one_by_one(drop=3), every_epoch(tmp_path), epochs=3)
    module, _ = pruned(tmp_path / "on", one_by_one(drop=3), epochs=5, resume=tmp_path / "epoch=2.ckpt")
    assert verdicts(module) == [(0, 2.0, True), (1, 1.0, True), (3, 0.0, True)]


@pytest.mark.slow
def test_steps_end_with_the_largest_share(tmp_path):
    prune = WidthPrune(Quality("val_loss", drop=10.0, mode="min", most=0.3), step=0.2, **SETTINGS)
    module, _ = pruned(tmp_path, prune, epochs=5)
    steps = trail_of(module).steps
    assert [step.asked for step in steps] == [{"macs": 0.2}, {"macs": 0.3}]
    assert [step.left["macs"] for step in steps] == pytest.approx([0.8, 0.7], abs=0.02)
    assert trail_of(module).ended == "as much as may go has gone"


def test_a_step_under_way_is_judged_where_a_fit_is_stopped(tmp_path):
    """Files from the rejected step do not count: "best" is a file of the kept network."""
    best = ModelCheckpoint(tmp_path, monitor="val_loss", filename="{epoch}")
    module, trainer = pruned(tmp_path, one_by_one(drop=0.5), best, max_steps=6)
    assert verdicts(module) == [(0, 2.0, False)]
    assert Ledger.of(module).is_dense
    (logged,) = trainer.validate(module, loader(shuffle=False), ckpt_path="best", verbose=False)
    assert logged["attentions"] == 3


class Worse(Sized):
    """Has a higher loss in the last epoch."""

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.log("quality", 0.0 if self.current_epoch == 3 and self.spoilt() else 1.0)

    def spoilt(self) -> bool:
        return not torch.equal(self.net.head.bias, self.held)

    held = torch.zeros(4)

    def on_train_epoch_start(self):
        if self.current_epoch == 3:
            self.held = self.net.head.bias.detach().clone()


@pytest.mark.slow
def test_a_fit_that_ends_below_the_quality_comes_back_to_what_held_it(tmp_path):
    prune = WidthPrune(Quality("quality", drop=0.5, most=0.2), step=0.2, **SETTINGS)
    with pytest.warns(UserWarning, match="end of the fit quality is 0, and 0.5 was asked for: the network is again"):
        module, trainer = pruned(tmp_path, prune, every_epoch(tmp_path), make=Worse)
    assert verdicts(module) == [(0, 1.0, True)]
    kept = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(value, kept[name]) for name, value in module.state_dict().items())
    assert trainer.checkpoint_callback.best_model_path == str(tmp_path / "kept.ckpt")


def test_patience_begins_anew(tmp_path):
    """Validations in between are seen by the callback alone."""
    stop = EarlyStopping("attentions", mode="max", patience=4)
    _, trainer = pruned(tmp_path, one_by_one(), stop, epochs=5)
    assert trainer.current_epoch == 5
    assert stop.best_score == 2


@pytest.mark.slow
def test_an_extra_validation_changes_nothing(tmp_path):
    """Values, random states, progress and metrics stay the same, and the results equal the epoch's own validation."""
    seen = []

    class Extra(pl.Callback):
        def __init__(self, runs: int) -> None:
            self.runs = runs

        def on_train_epoch_start(self, trainer, pl_module):
            for _ in range(self.runs):
                before = dict(trainer.callback_metrics)
                found = validate(trainer, pl_module)
                assert trainer.callback_metrics == before
                assert trainer.training
                assert pl_module.training
                if trainer.current_epoch:
                    seen.append((found["val_loss"], float(before["val_loss"])))

    modules = [pruned(tmp_path / str(runs), Extra(runs), every_epoch(tmp_path / str(runs)))[0] for runs in (0, 2)]
    assert seen
    assert all(extra == own for extra, own in seen)
    a, b = (module.state_dict() for module in modules)
    assert all(torch.equal(a[name], b[name]) for name in a)
    files = [torch.load(tmp_path / str(runs) / "epoch=3.ckpt", weights_only=True) for runs in (0, 2)]
    assert files[0]["loops"] == files[1]["loops"]
