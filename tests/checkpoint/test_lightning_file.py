"""Lightning checkpoints of pruned runs: the network alone, or the LightningModule that its own class cannot open."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.models.tiny import stir, tiny_images, tiny_inputs, tiny_llama, tiny_timm
from cases.tiny_plans import VIT, tiny_plan
from torch import Tensor, nn

from prunerecover import Plan, load_pruned, merge
from prunerecover.apply import apply_plan
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.checkpoint.ledger_record import KEY
from prunerecover.checkpoint.lightning_file import read_checkpoint
from prunerecover.model.paths import get_module, unwrap
from prunerecover.surgery.provenance import source_of


class Classifier(pl.LightningModule):
    """A user's module: a network, something beside it, and hyperparameters that shape both."""

    def __init__(self, depth: int = 4, width: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = tiny_timm(depth=depth)
        self.beside = nn.Linear(5, width)

    def forward(self, images: Tensor) -> Tensor:
        return self.beside(self.net(images))


class Compiled(Classifier):
    def __init__(self, depth: int = 4) -> None:
        super().__init__(depth)
        self.net = torch.compile(self.net)


class ItsOwnTarget(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = tiny_timm().blocks


class WithTeacher(Classifier):
    """Loads a teacher of its own kind on construction, and keeps it out of its checkpoints."""

    teacher_path = ""

    def __init__(self, depth: int = 4) -> None:
        super().__init__(depth)
        self.teacher = Classifier.load_from_checkpoint(self.teacher_path, weights_only=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name in [name for name in checkpoint["state_dict"] if name.startswith("teacher.")]:
            del checkpoint["state_dict"][name]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["state_dict"].update({f"teacher.{k}": v for k, v in self.teacher.state_dict().items()})


class TwoNetworks(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = tiny_timm(), tiny_timm(depth=3)


class Language(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_llama(tie_word_embeddings=True)


class NoPlainData:
    pass


def save(module: pl.LightningModule, path: Path) -> Path:
    """Save as a Trainer does."""
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    trainer.strategy.connect(module)
    trainer.save_checkpoint(path)
    return path


def prune(module: pl.LightningModule, case: str = "everything", target: str = "net", merged: bool = False) -> None:
    """Prune a module the way the callbacks do."""
    network = unwrap(get_module(module, target))
    ledger = Ledger.of(module)
    ledger.apply(module, target, tiny_plan(network, *VIT[case]))
    if merged:
        ledger.plans[target] += merge(network)


def stirred(module: pl.LightningModule) -> pl.LightningModule:
    stir(module, seed=5, scale=1.1)
    return module


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    checkpoint = torch.load(path, weights_only=True)
    change(checkpoint)
    torch.save(checkpoint, path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    module = stirred(Classifier())
    prune(module)
    return save(module, tmp_path / "last.ckpt")


@pytest.mark.parametrize("merged", [False, True], ids=["unmerged", "merged"])
@pytest.mark.parametrize("case", [name for name in VIT if name != "dense"])
def test_reloaded_is_saved(case: str, merged: bool, tmp_path: Path) -> None:
    module = stirred(Classifier(width=7))
    prune(module, case, merged=merged)
    path = save(module, tmp_path / "last.ckpt")
    network = load_pruned(path)
    assert not network.training
    assert repr(network) == repr(module.net)
    assert torch.equal(network(tiny_images()), module.net(tiny_images()))
    assert torch.equal(load_pruned(path, tiny_timm())(tiny_images()), module.net(tiny_images()))
    loaded = load_pruned(path, Classifier)
    assert type(loaded) is Classifier
    assert loaded.hparams == module.hparams
    assert torch.equal(loaded.eval()(tiny_images()), module(tiny_images()))


def test_a_class_is_left_as_it_was(file: Path) -> None:
    before = vars(Classifier).copy()
    load_pruned(file, Classifier)
    with pytest.raises(RuntimeError, match="Missing key"):
        Classifier.load_from_checkpoint(file, weights_only=True)
    assert dict(vars(Classifier)) == before


@pytest.mark.parametrize("cls", [Classifier, Compiled])
def test_compiled_modules(cls: type[pl.LightningModule], tmp_path: Path) -> None:
    module = stirred(Compiled())
    prune(module)
    path = save(module, tmp_path / "last.ckpt")
    expected = unwrap(module.net)(tiny_images())
    assert torch.equal(load_pruned(path)(tiny_images()), expected)
    loaded = load_pruned(path, cls)
    assert torch.equal(unwrap(loaded.net).eval()(tiny_images()), expected)


def test_weights_of_half_precision_keep_it(tmp_path: Path) -> None:
    module = stirred(Classifier())
    prune(module)
    module.net.bfloat16()
    path = save(module, tmp_path / "last.ckpt")
    for network in (load_pruned(path), load_pruned(path, Classifier).net, load_pruned(path, tiny_timm())):
        assert {p.dtype for p in network.parameters()} == {torch.bfloat16}
        assert torch.equal(network.eval()(tiny_images().bfloat16()), module.net(tiny_images().bfloat16()))


def test_language_models_stay_tied(tmp_path: Path) -> None:
    module = stirred(Language())
    plan = tiny_plan(module.model, (1, "attention", "affine"), (0, "block", "nothing"))
    Ledger.of(module).apply(module, "model", plan)
    path = save(module, tmp_path / "last.ckpt")
    inputs = tiny_inputs("llama")
    for model in (
        load_pruned(path),
        load_pruned(path, tiny_llama(tie_word_embeddings=True)),
        load_pruned(path, Language).model,
    ):
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert torch.equal(model.eval()(**inputs).logits, module.model(**inputs).logits)


@pytest.mark.parametrize("case", ["everything", "blocks"])
def test_a_teacher_of_the_same_class_is_loaded_as_ever(case: str, tmp_path: Path) -> None:
    """After whole blocks went, every name of the pruned network is one of the teacher's too."""
    teacher = stirred(Classifier())
    WithTeacher.teacher_path = str(save(teacher, tmp_path / "teacher.ckpt"))
    module = stirred(WithTeacher())
    prune(module, case)
    loaded = load_pruned(save(module, tmp_path / "last.ckpt"), WithTeacher)
    assert torch.equal(loaded.eval()(tiny_images()), module(tiny_images()))
    assert torch.equal(loaded.teacher.eval()(tiny_images()), teacher(tiny_images()))
    assert len(loaded.teacher.net.blocks) == 4


@pytest.mark.parametrize("asked", [Classifier, pl.LightningModule])
def test_files_of_lightnings_command_line(asked: type[pl.LightningModule], tmp_path: Path) -> None:
    """LightningCLI leaves in the file how it built the module, and of which class."""
    module = stirred(Classifier(width=7))
    prune(module)
    hparams: dict[str, Any] = {"_instantiator": "lightning.pytorch.cli.instantiate_module", "width": 7}
    if asked is pl.LightningModule:
        hparams["_class_path"] = f"{Classifier.__module__}.{Classifier.__qualname__}"
        assert Classifier.__module__ in sys.modules
    path = save(module, tmp_path / "last.ckpt")
    rewrite(path, lambda checkpoint: checkpoint.update({"hyper_parameters": hparams}))
    loaded = load_pruned(path, asked)
    assert type(loaded) is Classifier
    assert torch.equal(loaded.eval()(tiny_images()), module(tiny_images()))


def test_two_networks(tmp_path: Path) -> None:
    module = stirred(TwoNetworks())
    prune(module, "everything", "a")
    prune(module, "attention affine", "b")
    path = save(module, tmp_path / "last.ckpt")
    with pytest.raises(
        ValueError, match=r"one pruned network, but .* has 2 \('a', 'b'\). Pass the LightningModule class"
    ):
        load_pruned(path)
    loaded = load_pruned(path, TwoNetworks).eval()
    assert all(torch.equal(getattr(loaded, n)(tiny_images()), getattr(module, n)(tiny_images())) for n in "ab")


def test_before_the_first_surgery(tmp_path: Path) -> None:
    module = stirred(Classifier())
    Ledger.of(module)
    path = save(module, tmp_path / "last.ckpt")
    with pytest.raises(
        ValueError, match=r"has 0 \(it was saved before the first surgery\). Pass the LightningModule class"
    ):
        load_pruned(path)
    assert torch.equal(load_pruned(path, Classifier).eval()(tiny_images()), module(tiny_images()))


def test_a_plan_without_edits(file: Path) -> None:
    module = stirred(Classifier())
    plan = Plan(source=source_of(module.net)).to_dict()
    rewrite(file, lambda c: c.update({"state_dict": module.state_dict(), KEY: {**c[KEY], "plans": {"net": plan}}}))
    for network in (load_pruned(file), load_pruned(file, Classifier).net):
        assert torch.equal(network.eval()(tiny_images()), module.net(tiny_images()))


# What is refused


def test_a_run_without_pruning(tmp_path: Path) -> None:
    path = save(Classifier(), tmp_path / "last.ckpt")
    for model in (None, Classifier, tiny_timm()):
        with pytest.raises(
            ValueError, match="saved by a run without DepthPrune. It is dense: use .* load_from_checkpoint"
        ):
            load_pruned(path, model)


def test_weights_alone(tmp_path: Path) -> None:
    torch.save(tiny_timm().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="holds no 'state_dict'. Weights alone do not tell"):
        load_pruned(tmp_path / "weights.pt")


def test_a_newer_ledger(file: Path) -> None:
    rewrite(file, lambda c: c[KEY].update({"schema": "prunerecover.ledger/2"}))
    with pytest.raises(ValueError, match="ledger of schema prunerecover.ledger/1, but .* has prunerecover.ledger/2"):
        load_pruned(file)


def test_a_newer_plan(file: Path) -> None:
    rewrite(file, lambda c: c[KEY]["plans"]["net"].update({"schema": "prunerecover.plan/2"}))
    with pytest.raises(ValueError, match="prunerecover.plan/1, but got prunerecover.plan/2"):
        load_pruned(file)


def test_files_that_cannot_be_read(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    for wrong in (content[:-1000], b"", b"{}", b"not a checkpoint"):
        (tmp_path / "wrong.ckpt").write_bytes(wrong)
        with pytest.raises(ValueError, match=r"cannot be read as one .* Is the file cut off\? Copy it again"):
            load_pruned(tmp_path / "wrong.ckpt")


def test_only_plain_data(file: Path) -> None:
    checkpoint = torch.load(file, weights_only=True)
    checkpoint["hyper_parameters"]["loss"] = NoPlainData()
    torch.save(checkpoint, file)
    for model in (None, Classifier):
        with pytest.raises(
            ValueError, match=r"only plain data in .*NoPlainData.*save_hyperparameters\(ignore=.*add_safe_globals"
        ):
            load_pruned(file, model)
    with torch.serialization.safe_globals([NoPlainData]):
        load_pruned(file)


@pytest.mark.parametrize("model", [None, Classifier], ids=["network", "class"])
def test_weights_that_do_not_fit(model: type[nn.Module] | None, file: Path) -> None:
    rewrite(file, lambda c: c["state_dict"].pop("net.head.weight"))
    with pytest.raises(ValueError, match="Expected the weights of the VisionTransformer .* lacks head.weight"):
        load_pruned(file, model)


def test_what_lies_beside_the_network_must_fit_too(file: Path) -> None:
    rewrite(file, lambda c: c["state_dict"].pop("beside.weight"))
    with pytest.raises(RuntimeError, match="Missing key.*beside.weight"):
        load_pruned(file, Classifier)


def test_a_class_that_builds_another_network(file: Path) -> None:
    rewrite(file, lambda c: c["hyper_parameters"].update({"depth": 3}))
    with pytest.raises(ValueError, match="Expected the model that the plan was made for .* this model has 3 blocks"):
        load_pruned(file, Classifier)


def test_a_class_that_loads_other_weights(file: Path) -> None:
    class Other(Classifier):
        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["state_dict"] = self.state_dict()

    with pytest.raises(ValueError, match="Expected Other to load the weights of net .* but it loaded others"):
        load_pruned(file, Other)


def test_a_class_for_a_folder(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Expected a Lightning checkpoint for the class Classifier, but .* is a folder"):
        load_pruned(tmp_path, Classifier)


def test_an_instance(file: Path) -> None:
    with pytest.raises(
        TypeError, match="Expected the class Classifier or the network inside it, but got a Lightning.* inst"
    ):
        load_pruned(file, Classifier())


def test_a_plan_applies_to_what_was_loaded(file: Path) -> None:
    network = load_pruned(file)
    plan = tiny_plan(network, (0, "mlp", "zero"))
    apply_plan(network, plan)
    assert read_checkpoint(file).plans["net"].result.tensors == plan.source.tensors
