"""Bad input to the callbacks: messages with expectation, input and remedy; the model stays unchanged."""

from __future__ import annotations

import pytest
import torch
from cases.models.habits import Parts, Plain, dataset, loader, tiny_vit
from cases.refusals import plan_for_plain, refused, snapshot
from cases.trainers import fit, prune, trainer_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from prunerecover import Budget, find_units, plan_depth
from prunerecover.callbacks import DepthPrune
from prunerecover.callbacks.ledger.ledger import Ledger


@pytest.mark.slow
def test_plan_is_read_when_the_fit_is_set_up(tmp_path):
    """A recipe may name a plan before `prunerecover plan` writes it."""
    path = tmp_path / "later.json"
    callback = DepthPrune(plan=path)
    refused(tmp_path, Plain(), callback, error=FileNotFoundError, match="Expected a plan file at .*later.json")
    plan = plan_for_plain()
    plan.save(path)
    module = Plain()
    fit(tmp_path, module, callback)
    assert Ledger.of(module).plans["net"].removed == plan.removed


@pytest.mark.parametrize(
    ("schedule", "last"),
    [({"start": 2}, 2), ({"every": 1, "step": 1}, 2), ({"every": 3, "step": 2}, 3)],
)
def test_schedule_past_max_epochs(tmp_path, schedule, last):
    callback = prune(remove={"attention": 3, "activation": 1}, schedule=schedule)
    match = f"Expected all surgeries before max_epochs=2, but the last of . comes at the start of epoch {last}"
    refused(tmp_path, Plain(), callback, match=match)


class NoNetwork(Plain):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


NO_UNITS = "to have units of kind attention, activation that may go, but there is none"


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (NoNetwork, {}, f"Expected Sequential {NO_UNITS}.* are narrowed by plan_width and WidthPrune"),
        (Plain, {"target": "net.head"}, f"Expected Linear {NO_UNITS}"),
        (Plain, {"target": "model"}, r"inside Plain as target, but there is no module at 'model'\. It has net;"),
        (Parts, {"schedule": 0}, "Parts.training_step to call the network at target='net', but it never did"),
    ],
)
def test_networks_that_cannot_be_pruned(tmp_path, make, arguments, message):
    refused(tmp_path, make(), prune(**arguments), match=message)


class Forgetful(Plain):
    """Trains only the head, although all weights require gradients."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.head.parameters(), 1e-2)


def test_parameters_that_no_optimizer_holds(tmp_path):
    match = (
        r"Expected every trainable parameter .* but none holds cls_token, .*, .*, \.\.\.\. Add them in configure_opt"
    )
    refused(tmp_path, Forgetful(), prune(schedule={"start": 0}), error=RuntimeError, match=match)


def test_frozen_parameters_need_no_optimizer(tmp_path):
    module = Forgetful()
    module.net.requires_grad_(False).head.requires_grad_(True)
    fit(tmp_path, module, prune())
    assert Ledger.of(module).events
    assert {name for name, p in module.net.named_parameters() if p.requires_grad} == {"head.weight", "head.bias"}


def test_training_data_without_a_batch(tmp_path):
    class Nothing(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    match = "Expected training data to calibrate on, but the train dataloader gave no batch"
    refused(tmp_path, Plain(), prune(schedule={"start": 0}), match=match, data=DataLoader(Nothing()))


@pytest.mark.parametrize("settings", [{"max_steps": 3}, {"data": DataLoader(TensorDataset(*dataset()[:0]), 8)}])
def test_fit_that_ends_before_the_surgery(tmp_path, settings):
    match = "The fit ended before 1 surgeries of DepthPrune.0, the first at .* epoch 1: .* less pruned than asked for"
    with pytest.warns(UserWarning, match=match):
        fit(tmp_path, Plain(), prune(), **settings)


def test_budget_below_one_unit(tmp_path):
    with pytest.warns(UserWarning, match="DepthPrune.0 will remove nothing: .*ratio.* is less than one unit"):
        fit(tmp_path, Plain(), prune(remove=None, budget=Budget(ratio={"attention": 0.1})))


@pytest.mark.filterwarnings("ignore:Only")
def test_share_below_one_unit_is_said_and_done(tmp_path):
    """A plan without edits changes nothing, once."""
    module = Plain()
    with pytest.warns(UserWarning, match="DepthPrune.0 removed nothing: its plan has no edits"):
        fit(tmp_path, module, prune(remove=None, budget=Budget(params=0.0), importance="output_divergence"), epochs=3)
    assert [event.units for event in Ledger.of(module).events] == [()]
    assert len(find_units(module.net)) == 12


def another_model(folder):
    return plan_depth(tiny_vit(depth=4), remove={"activation": 1}, batches=[dataset().tensors[0]])


def without_its_sidecar(folder):
    path = plan_for_plain().save(folder / "plan.json")
    path.with_suffix(".safetensors").unlink()
    return path


def edited(folder):
    plan = plan_for_plain(replace="identity")
    return plan.model_copy(update={"result": plan.result.model_copy(update={"tensors": "0" * 64})})


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (another_model, "Expected the model that the plan was made for .* this model has 3 blocks"),
        (without_its_sidecar, r"plan's fitted tensors \(e0.* but they are missing. Put the .safetensors file"),
        (edited, "Expected the plan to leave the model it describes, but it left another"),
    ],
)
def test_plans_that_do_not_fit(tmp_path, made, message):
    refused(tmp_path, Plain(), prune(remove=None, plan=made(tmp_path), schedule=0), match=message)


def test_plan_for_other_weights_without_data_to_fit_anew(tmp_path):
    """Before a test there may be no training data, and with other weights the fitted tensors are wrong."""
    module = Plain()
    before = snapshot(module)
    with pytest.raises(ValueError, match="Expected the weights that the plan's tensors were fitted to"):
        trainer_of(tmp_path, DepthPrune(plan=plan_for_plain())).test(module, loader(), verbose=False)
    assert snapshot(module)[0] == before[0]


def test_remove_before_test_warns(tmp_path):
    module = Plain()
    with pytest.warns(UserWarning, match=r"DepthPrune with a budget decides during a fit: .* nothing is pruned now"):
        trainer_of(tmp_path, prune()).test(module, loader(), verbose=False)
    assert len(find_units(module.net)) == 12
