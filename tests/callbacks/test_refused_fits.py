"""Fits that are refused before any training, by message; the module stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.fits.quality import Sized, one_by_one
from cases.fits.routed_lora import Language, batches, shared
from cases.models.habits import Manual, Parts, Plain, TwoNetworks, Wrapped, dataset, loader, tiny_vit, tokens
from cases.refusals import plan_for_plain, refused
from cases.trainers import Around, fit, prune
from cases.width.width_prune import Classifier, Direct, rows
from cases.width.width_prune import prune as narrow
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from prunerecover import (
    Budget,
    DepthPrune,
    DistillRecover,
    LoRARecover,
    Prune,
    Quality,
    RecoverySchedule,
    WidthPrune,
    plan_depth,
)
from prunerecover.callbacks.ledger.ledger import Ledger

Callbacks = Callable[[], Any]
SETTINGS: dict[str, Any] = {"calibration": 8, "schedule": 1}


def depth(**arguments: Any) -> DepthPrune:
    return DepthPrune(**{**SETTINGS, **arguments})


def width(*budget: Any, **arguments: Any) -> WidthPrune:
    return WidthPrune(*budget, **{**SETTINGS, **arguments})


def both(**arguments: Any) -> Prune:
    return Prune(**{"budget": Budget(macs=0.9), **SETTINGS, "kinds": ("attention", "neuron"), **arguments})


def quality(monitor: str, **arguments: Any) -> WidthPrune:
    return WidthPrune(Quality(monitor, **{"drop": 0.1, **arguments}), calibration=8)


def of_other_model() -> Any:
    images = [dataset().tensors[0]]
    return plan_depth(tiny_vit(depth=4), importance="magnitude", remove={"activation": 1}, batches=images)


def listed(made: Any) -> list[Any]:
    return made if isinstance(made, list) else [made]


def edited() -> Any:
    plan = plan_for_plain(replace="identity")
    return plan.model_copy(update={"result": plan.result.model_copy(update={"tensors": "0" * 64})})


MOST = r"the groups can meet, {}% of the {}, but at most [0-9.]+% can go"
LAST = "Expected all surgeries before max_epochs=2, but the last of . comes at the start of epoch {}"
PLAIN: list[tuple[Callbacks, str]] = [
    # Names and numbers of units.
    (lambda: prune(ignore=["layers.*"]), "ignore to match units such as .*, but 'layers.*' matches"),
    (lambda: width(Budget(macs=0.2), ignore=["nothing.*"]), "ignore to match groups such"),
    (lambda: both(ignore="layer9.*"), r"ignore to match units .*, but 'layer9.\*' matches none"),
    (lambda: prune(target="net.head"), "Expected Linear to have units of kind attention, activation that may go, but"),
    (lambda: prune(target="model"), r"inside Plain as target, but there is no module at 'model'\. It has net;"),
    (lambda: prune(remove={"attention": 9}), "'attention' to remove, but got 9"),
    (lambda: depth(remove={"block": 3, "layer": 1}), "one block of 'blocks' to stay, so that at most 2 of 3 blocks"),
    (lambda: depth(budget=Budget(params=0.3), importance="magnitude"), "='output_divergence' for a share of cost over"),
    # Shares of cost.
    (lambda: width(Budget(macs=0.95)), MOST.format("95.0", "macs")),
    (lambda: width(Budget(params=0.95), allocation="fair_pruner"), MOST.format("95.0", "params")),
    (lambda: width(Budget(macs=0.99), schedule={"every": 1, "times": 2}), MOST.format("99.0", "macs")),
    (lambda: depth(budget=Budget(macs=0.99)), "of the macs, but all .* that may go hold [0-9.]+%"),
    (lambda: depth(budget=Budget(params=0.6), ignore=["blocks.[01]*"]), "60.0% of the params, but all .* hold"),
    (lambda: both(kinds="attention"), "Expected units that hold 90.0% of the macs, but all 3"),
    (lambda: both(kinds="neuron"), "Expected a budget that the groups can meet, 90.0% of the"),
    # Schedules.
    (lambda: prune(schedule=2), LAST.format(2)),
    (lambda: prune(remove={"attention": 3}, schedule={"every": 1, "step": 1}), LAST.format(2)),
    (lambda: prune(remove={"attention": 3}, schedule={"every": 3, "step": 2}), LAST.format(3)),
    # Plans and teachers.
    (lambda: prune(plan=of_other_model(), schedule=0), "the plan was made for .* this model has 3 blocks"),
    (lambda: prune(plan=edited(), schedule=0), "to leave the model it describes, but it left another"),
    (
        lambda: [prune(schedule=0), DistillRecover(tiny_vit(num_classes=9))],
        r"teacher and student to answer alike, but got shapes \(2, 9\) and \(2, 4\)",
    ),
    (lambda: shared(Language().net), "a language model of transformers .* at 'net', but got a VisionTran"),
]


@pytest.mark.parametrize(("callbacks", "message"), PLAIN)
def test_callbacks_that_do_not_fit_the_network_are_refused(callbacks: Callbacks, message: str, tmp_path: Path) -> None:
    refused(tmp_path, Plain(), *listed(callbacks()), match=message)


class Empty(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(())


class Endless(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        while True:
            yield from dataset(8)


class Several(Classifier):
    """Labels by name."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1]["species"])


class Inline(Direct):
    def net(self, images: Tensor) -> Tensor:
        return self.forward(images)  # past the hooks of the module


class Beside(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(2, 2)


class Forgetful(Plain):
    """Trains only the head, although all weights require gradients."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.head.parameters(), 1e-2)


class Rateless(Manual):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        optimizer.param_groups[0]["lr"] = None
        return optimizer


class NeverANumber(Sized):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("quality", float("nan"))


def alone() -> pl.LightningModule:
    return Around(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)))


def without_validation() -> pl.LightningModule:
    return Around(Sized().net)


def endless() -> Any:
    return DataLoader(Endless(), 4)


def species() -> Any:
    return DataLoader([(x, {"species": y}) for x, y in rows(False).dataset], batch_size=12)


def routed(*beside: Any) -> list[Any]:
    return [shared(Language().net), *beside]


NOW = {"schedule": 0}
DATA: dict[Any, Callable[[], Any]] = {Classifier: rows, Direct: rows, Inline: rows, Beside: rows, Several: species}
DATA |= {Wrapped: tokens, Language: batches}
VAL = {"val": loader(shuffle=False), "epochs": 4}
HOW = "Say which with"
LENGTH = "a fit of known length .* "
OTHERS: list[tuple[Callable[[], Any], Callbacks, str]] = [
    # What is pruned.
    (alone, lambda: prune(), "attention, activation that may go, but there is none.* by plan_width and WidthPrune"),
    (Parts, lambda: prune(**NOW), "Parts.training_step to call the network at target='net', but it never did"),
    (Wrapped, lambda: depth(remove={"activation": 1}), "gated"),
    (TwoNetworks, lambda: prune(), f"found 2: net, other. {HOW} target='net'"),
    (Beside, lambda: narrow(), f"Expected one network inside Beside, but found net, other. {HOW}"),
    (Direct, lambda: narrow(), f"found conv, norm, head. {HOW} target='conv', or with target='' that"),
    (Direct, lambda: narrow(target="model"), "no module at 'model'. It has conv, norm, head; '' is the module"),
    (Inline, lambda: narrow(target=""), r"Inline\.training_step to call the module itself, self\(\.\.\.\)"),
    (Language, lambda: shared(Language(vocab_size=60).net), "Expected the model that the plan was made for"),
    # Data.
    (Several, lambda: narrow(allocation="fair_pruner", schedule=0), r"but got list without\. Pass labels=, a func"),
    (Classifier, lambda: narrow(round_to={"channel": 64}), "but at most 0.0% can go. Widths stay multiples of up"),
    # Callbacks beside others.
    (Language, lambda: routed(DepthPrune(remove={"mlp": 1})), "Expected no DepthPrune beside"),
    (Language, lambda: routed(DistillRecover()), "Expected no DistillRecover beside RoutedLoRA"),
    (Language, lambda: routed(LoRARecover()), "Expected one LoRARecover for the network at 'net'"),
]
FITS: list[tuple[Callable[[], Any], Callbacks, str, dict[str, Any]]] = [
    (Plain, lambda: [prune(**NOW)], "but the train dataloader gave no batch", {"data": DataLoader(Empty())}),
    (Plain, lambda: [prune(), RecoverySchedule()], f"{LENGTH}max_epochs=-1, no max_steps and 6 ba", {"epochs": -1}),
    (Plain, lambda: [prune(), RecoverySchedule()], "and inf batches. Set max_steps", {"data": endless()}),
    (Manual, lambda: [prune(), RecoverySchedule()], "under manual optimization, .* max_steps=9", {"max_steps": 9}),
    (Manual, lambda: [prune(), RecoverySchedule()], "under manual optimization, .* inf batches", {"data": endless()}),
    (Sized, lambda: [quality("val_ac")], "validation logs, but that is val_loss, val_acc, attentions. Log it in", VAL),
    (Sized, lambda: [quality("val_acc", baseline=1.5)], "to be within 0.1 of baseline=1.5, but it is", VAL),
    (NeverANumber, lambda: [quality("quality")], "a number as quality .* before the first step, but got nan", VAL),
    (without_validation, lambda: [one_by_one()], "Expected a fit with validation for Quality", VAL),
    (Sized, lambda: [one_by_one()], "Expected a fit with validation for Quality", {**VAL, "limit_val_batches": 0}),
    (Sized, lambda: [one_by_one(), quality("val_loss")], "prunes until a metric falls, but got 2", VAL),
    (Sized, lambda: [one_by_one()], "Expected all surgeries before max_epochs=1", {**VAL, "epochs": 1}),
]


@pytest.mark.parametrize(("make", "callbacks", "message"), OTHERS)
def test_other_networks_are_refused(make: Any, callbacks: Callbacks, message: str, tmp_path: Path) -> None:
    data = DATA[make]() if make in DATA else None
    refused(tmp_path, make(), *listed(callbacks()), match=message, data=data)


@pytest.mark.parametrize(("make", "callbacks", "message", "settings"), FITS)
def test_impossible_fits_are_refused(make: Any, callbacks: Any, message: str, settings: Any, tmp_path: Path) -> None:
    refused(tmp_path, make(), *callbacks(), match=message, **settings)


def test_a_plan_without_its_sidecar_is_refused(tmp_path: Path) -> None:
    path = plan_for_plain().save(tmp_path / "plan.json")
    path.with_suffix(".safetensors").unlink()
    match = r"plan's fitted tensors \(e0.* but they are missing. Put the .safetensors file"
    refused(tmp_path, Plain(), prune(plan=path, schedule=0), match=match)


def test_parameters_that_no_optimizer_holds_are_named(tmp_path: Path) -> None:
    match = r"every trainable parameter .* but none holds cls_token, .*, .*, \.\.\.\. Add them in configure_opt"
    refused(tmp_path, Forgetful(), prune(**NOW), error=RuntimeError, match=match)


def test_optimizers_without_a_rate_are_refused(tmp_path: Path) -> None:
    match = "Expected optimizers of torch with a learning rate in each group, but got SGD"
    refused(tmp_path, Rateless(), prune(), RecoverySchedule(), error=TypeError, match=match)


def test_frozen_parameters_need_no_optimizer(tmp_path: Path) -> None:
    module = Forgetful()
    module.net.requires_grad_(False).head.requires_grad_(True)
    fit(tmp_path, module, prune())
    assert Ledger.of(module).events
    assert {name for name, p in module.net.named_parameters() if p.requires_grad} == {"head.weight", "head.bias"}
