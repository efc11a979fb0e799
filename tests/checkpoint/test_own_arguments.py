"""Checkpoints of modules with saved objects, and distributed checkpoints, without execution of code."""

from __future__ import annotations

import functools
import os
import pickle
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.engine import unchanged
from cases.files.lightning_files import Classifier, prune, rewrite, save, stirred
from cases.models.tiny import tiny_images, tiny_timm
from cases.paths import ROOT
from lightning.fabric.utilities.load import _METADATA_FILENAME
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp

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
def taken(saved: Callable[..., Path]) -> tuple[Path, TakesNetwork]:
    module = TakesNetwork(tiny_timm())
    return saved(module), module


def test_a_class_gets_the_dense_network_back_and_an_instance_is_pruned_in_place(
    taken: tuple[Path, TakesNetwork],
) -> None:
    path, module = taken
    mine = TakesNetwork(tiny_timm())
    assert load_pruned(path, mine) is mine
    assert not mine.training
    for loaded in (mine, load_pruned(path, TakesNetwork).eval()):
        assert torch.equal(loaded(tiny_images()), module(tiny_images()))


def test_a_class_whose_file_is_trusted(taken: tuple[Path, TakesNetwork]) -> None:
    """The network among the hyperparameters is then the pruned one."""
    path, module = taken
    names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    with torch.serialization.safe_globals(list(map(pkgutil.resolve_name, names))):
        loaded = load_pruned(path, TakesNetwork)
    assert torch.equal(loaded.eval()(tiny_images()), module(tiny_images()))


def test_an_instance_that_does_not_fit_stays_as_it_was(taken: tuple[Path, TakesNetwork]) -> None:
    mine = TakesNetwork(tiny_timm(), width=7)
    message = r"beside.bias is \(7,\) in it and \(3,\) in the file. Build it with the same"
    with unchanged(mine), pytest.raises(ValueError, match=message):
        load_pruned(taken[0], mine)


def test_a_class_that_needs_what_no_file_tells(saved: Callable[..., Path]) -> None:
    make = functools.partial(torch.optim.AdamW, lr=1e-3)
    module = TakesOptimizer(tiny_timm(), make)
    path = saved(module)
    message = r"only plain data .*, but got optimizer \(.*\), and nothing in a file is executed. Build the module as"
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


class Executes:
    """Writes a file as it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_executed(saved: Callable[..., Path], tmp_path: Path) -> None:
    module = Classifier()
    path = saved(module)
    rewrite(path, lambda checkpoint: checkpoint["hyper_parameters"].update({"extra": [Executes(tmp_path / "trace")]}))
    assert torch.equal(load_pruned(path)(tiny_images()), module.net(tiny_images()))
    assert not (tmp_path / "trace").exists()


def as_folder(file: Path, folder: Path, key: str = "state_dict") -> Path:
    """Write a checkpoint's content as the strategies do: weights and moments in shards, the rest in meta.pt."""
    checkpoint = torch.load(file, weights_only=True)
    weights = checkpoint.pop("state_dict")
    shards: dict[str, Any] = {key: weights, "optimizer_0": {"lr": 0.1, "names": ["a"]}}
    dcp.save(shards, checkpoint_id=folder, no_dist=True)
    torch.save(checkpoint, folder / _METADATA_FILENAME)
    return folder


@pytest.fixture
def folder(file: Path, tmp_path: Path) -> Path:
    return as_folder(file, tmp_path / "epoch=1.ckpt")


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_a_folder_opens_as_the_file_does(key: str, file: Path, tmp_path: Path) -> None:
    folder = as_folder(file, tmp_path / "epoch=1.ckpt", key)
    for model in (None, Classifier):
        wanted, found = (load_pruned(path, model).state_dict() for path in (file, folder))
        assert wanted.keys() == found.keys()
        assert all(torch.equal(value, found[name]) for name, value in wanted.items())


def test_an_index_that_would_execute_code(folder: Path, tmp_path: Path) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(Executes(tmp_path / "trace")))
    with pytest.raises(ValueError, match=r"\(UnpicklingError: .metadata names pathlib[\w.]*Path.touch, and nothing in"):
        load_pruned(folder)
    assert not (tmp_path / "trace").exists()


def test_an_index_that_names_files_elsewhere(folder: Path) -> None:
    index = pickle.loads((folder / ".metadata").read_bytes())
    for info in index.storage_data.values():
        info.relative_path = f"../{info.relative_path}"
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(ValueError, match=r"names \.\./__0_0\.distcp, which is no file of the folder"):
        load_pruned(folder)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_a_folder_that_is_not_complete(name: str, folder: Path) -> None:
    message, content = (
        "Expected a distributed checkpoint in .*Is a file missing or cut off",
        (folder / name).read_bytes(),
    )
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=message):
        load_pruned(folder)
    (folder / name).unlink()
    with pytest.raises(ValueError, match=message):
        load_pruned(folder)


def test_a_folder_without_what_lightning_adds(folder: Path) -> None:
    (folder / "meta.pt").unlink()
    with pytest.raises(ValueError, match="but .* has no meta.pt, which holds what was pruned. Is the folder complete"):
        load_pruned(folder)


def test_a_folder_of_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "zero_to_fp32.py").touch()
    with pytest.raises(FileNotFoundError, match="has no plan.json. It is one of DeepSpeed: make it one file with conv"):
        load_pruned(tmp_path)


def test_a_file_that_is_exported_as_a_folder(folder: Path, tmp_path: Path) -> None:
    from prunerecover.recipes.cli.export import export

    export(str(folder), str(tmp_path / "out"), target="net")
    exported, network = load_pruned(tmp_path / "out"), load_pruned(folder)
    assert torch.equal(exported.head.weight, network.head.weight)


FIT = """
import sys
from pathlib import Path
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from cases.two_ranks import DepthPrune, ONCE, Sharded, dataset, loader, pl, plan_depth, seeded
from cases.models.habits import Plain
from prunerecover import load_pruned

folder = Path(sys.argv[1])
plan = plan_depth(seeded().net, remove=ONCE["remove"], batches=[dataset().tensors[0]])
strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
keep = ModelCheckpoint(folder, filename="{epoch}")
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
runner = pl.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy=strategy,
                    callbacks=[DepthPrune(plan=plan), keep], **quiet)
module = seeded(Sharded)
runner.fit(module, loader())
wanted = {name: value.full_tensor() for name, value in module.net.state_dict().items()}
if runner.is_global_zero:
    assert (folder / "epoch=0.ckpt" / "meta.pt").is_file()
    network, whole = load_pruned(folder / "epoch=0.ckpt"), load_pruned(folder / "epoch=0.ckpt", Plain)
    for found in (network.state_dict(), whole.net.state_dict()):
        assert found.keys() == wanted.keys()
        assert all(torch.equal(value, found[name]) for name, value in wanted.items())
    print("the same")
"""


@pytest.mark.slow
def test_what_a_sharded_fit_saves_opens(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FIT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    command = [sys.executable, str(script), str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.count("the same") == 1, done.stderr[-4000:]
