"""Refusals of LoRARecover, by message."""

from __future__ import annotations

import sys

import pytest
import torch
from cases.lora import depth, fit, lora
from cases.models.habits import Plain
from cases.refusals import refused
from cases.trainers import sharded
from lightning.pytorch.strategies import FSDPStrategy
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from prunerecover.callbacks import LoRARecover
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.recovery.lora import has_adapters


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"rank": 0}, r"Expected argument rank of LoRARecover in its range, but got 0: .* Usual are rank=16"),
        ({"alpha": 0}, r"Expected argument alpha of LoRARecover in its range, but got 0"),
        ({"dropout": 1.0}, r"Expected argument dropout of LoRARecover in its range, but got 1.0"),
        ({"start": -1}, r"Expected argument start to be at least 0, but got -1"),
    ],
)
def test_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        LoRARecover(**arguments)


class Convolutions(Plain):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 4))


class Adapted(Plain):
    def __init__(self):
        super().__init__()
        inject_adapter_in_model(LoraConfig(r=2, target_modules=["qkv"]), self.net)


class Elsewhere(Plain):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def loss(self, batch):
        return super().loss(batch) * self.scale

    def configure_optimizers(self):
        return torch.optim.SGD([self.scale], 0.1)


@pytest.mark.parametrize(
    ("make", "callbacks", "error", "message"),
    [
        (Plain, [lora(start=3)], ValueError, "Expected LoRARecover to start before max_epochs=3, but got start=3"),
        (
            Plain,
            [lora(target_modules=["q_proj"])],
            ValueError,
            r"of VisionTransformer to adapt at target_modules=\['q_proj'\], but there are none. Name some of: .*qkv",
        ),
        (Plain, [lora(), lora(rank=3)], ValueError, "one LoRARecover for the network at 'net', but got 2. Remove one"),
        (Convolutions, [lora()], ValueError, "Sequential to adapt in its blocks, but there are none. .* of: 0, 2"),
        (Adapted, [lora()], ValueError, "VisionTransformer without adapters, but it has .* of peft. Merge them first"),
        (
            Elsewhere,
            [lora(target="net")],
            RuntimeError,
            "an optimizer that holds parameters of the network, for its adapters to join, but none does",
        ),
    ],
)
def test_what_no_fit_can_do(tmp_path, make, callbacks, error, message):
    refused(tmp_path, make(), *callbacks, match=message, error=error, epochs=3)


def test_without_blocks_the_named_layers_are_adapted(tmp_path):
    module, _ = fit(tmp_path, lora(target_modules="0"), make=Convolutions, epochs=1)
    assert Ledger.of(module).adapters["net"].modules == ("0",)
    assert module.net[2].weight.requires_grad


def test_without_peft(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    match = r"Expected peft for LoRA, but it cannot be imported .* pip install"
    refused(tmp_path, Plain(), lora(), match=match, error=ImportError)


def test_resuming_with_other_arguments(tmp_path):
    fit(tmp_path, lora(), epochs=1)
    with pytest.raises(ValueError, match=r"LoRARecover with the arguments of the run that is resumed \(rank=2"):
        fit(tmp_path, lora(rank=3), epochs=2, resume=tmp_path / "epoch=0.ckpt")


@pytest.mark.slow
def test_surgery_without_it_is_said(tmp_path):
    fit(tmp_path, lora(), depth(schedule={"start": 2}))
    with pytest.warns(UserWarning, match=r"at 'net' are merged for its surgery, and no callback here injects new ones"):
        module, _ = fit(tmp_path / "a", depth(schedule={"start": 2}), resume=tmp_path / "epoch=0.ckpt")
    assert not has_adapters(module.net)
    assert all(p.requires_grad for p in module.net.parameters())


def test_sharding():
    module, callback = Plain(), lora()
    with pytest.raises(ValueError, match=r"Expected a strategy that keeps the model whole, but got FSDPStrategy"):
        callback.setup(sharded(FSDPStrategy.__new__(FSDPStrategy), callback), module, "fit")


def test_unfrozen_by_hand_is_not_in_the_optimizer(tmp_path):
    """A second fit is refused if configure_optimizers leaves out the adapters."""

    class Named(Plain):
        def configure_optimizers(self):
            return torch.optim.SGD([p for n, p in self.named_parameters() if "lora" not in n], 0.1)

    module, _ = fit(tmp_path, lora(), make=Named, epochs=1)
    with pytest.raises(RuntimeError, match=r"Expected every trainable parameter of the network in an optimizer"):
        fit(tmp_path / "again", lora(), module=module, epochs=1)
