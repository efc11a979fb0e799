"""Checkpoints of modules with networks, optimizers and other objects among the saved arguments."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.files.lightning_files import Classifier, prune, rewrite, save, stirred
from cases.models.tiny import tiny_images, tiny_timm
from torch import Tensor, nn

from prunerecover import load_pruned
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.recovery.lora import LoraSettings, plan_adapters

pytestmark = pytest.mark.filterwarnings("ignore:Attribute 'net' is an instance of")


class TakesNetwork(pl.LightningModule):
    """As in lightning-hydra-template."""

    def __init__(self, net: nn.Module, width: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = net
        self.beside = nn.Linear(5, width)

    def forward(self, images: Tensor) -> Tensor:
        return self.beside(self.net(images))


class TakesOptimizer(TakesNetwork):
    def __init__(self, net: nn.Module, optimizer: Callable[..., Any]) -> None:
        super().__init__(net)
        self.save_hyperparameters()


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, TakesNetwork]:
    module = stirred(TakesNetwork(tiny_timm()))
    prune(module)
    return save(module, tmp_path / "last.ckpt"), module


def test_a_class_gets_the_dense_network_back(saved: tuple[Path, TakesNetwork]) -> None:
    path, module = saved
    loaded = load_pruned(path, TakesNetwork)
    assert torch.equal(loaded.eval()(tiny_images()), module(tiny_images()))


def test_a_class_whose_file_is_trusted(saved: tuple[Path, TakesNetwork]) -> None:
    """The network among the hyperparameters is then the pruned one."""
    path, module = saved
    names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    with torch.serialization.safe_globals(list(map(pkgutil.resolve_name, names))):
        loaded = load_pruned(path, TakesNetwork)
    assert torch.equal(loaded.eval()(tiny_images()), module(tiny_images()))


def test_an_instance_is_pruned_in_place(saved: tuple[Path, TakesNetwork]) -> None:
    path, module = saved
    mine = TakesNetwork(tiny_timm())
    assert load_pruned(path, mine) is mine
    assert not mine.training
    assert torch.equal(mine(tiny_images()), module(tiny_images()))


def test_an_instance_that_does_not_fit_stays_as_it_was(saved: tuple[Path, TakesNetwork]) -> None:
    mine = TakesNetwork(tiny_timm(), width=7)
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    with pytest.raises(ValueError, match=r"beside.bias is \(7,\) in it and \(3,\) in the file. Build it with the same"):
        load_pruned(saved[0], mine)
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())


def test_a_class_that_needs_what_no_file_tells(tmp_path: Path) -> None:
    make = functools.partial(torch.optim.AdamW, lr=1e-3)
    module = stirred(TakesOptimizer(tiny_timm(), make))
    prune(module)
    path = save(module, tmp_path / "last.ckpt")
    message = (
        r"only plain data .*, but got optimizer \(.*\), and nothing in a file is executed. Build the module as before"
    )
    with pytest.raises(ValueError, match=message):
        load_pruned(path, TakesOptimizer)
    loaded = load_pruned(path, TakesOptimizer(tiny_timm(), make))
    assert torch.equal(loaded(tiny_images()), module(tiny_images()))


def test_adapters_of_an_instance_are_merged(tmp_path: Path) -> None:
    module = stirred(TakesNetwork(tiny_timm()))
    prune(module)
    Ledger.of(module).inject(module, "net", plan_adapters(module.net, LoraSettings(rank=2, alpha=4)))
    path = save(module, tmp_path / "last.ckpt")
    for model in (TakesNetwork, TakesNetwork(tiny_timm())):
        loaded = load_pruned(path, model).eval()
        torch.testing.assert_close(loaded(tiny_images()), module.eval()(tiny_images()), rtol=1e-4, atol=1e-5)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    trace = tmp_path / "trace"

    class Executes:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (trace,))

    module = stirred(Classifier())
    prune(module)
    path = save(module, tmp_path / "last.ckpt")
    rewrite(path, lambda checkpoint: checkpoint["hyper_parameters"].update({"extra": [Executes()]}))
    assert torch.equal(load_pruned(path)(tiny_images()), module.net(tiny_images()))
    assert not trace.exists()
