"""Lightning checkpoints of pruned runs: the network alone, or the LightningModule, which its own class cannot open."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.files.lightning_files import Classifier, prune, rewrite, save, stirred
from cases.models.tiny import tiny_images, tiny_inputs, tiny_llama, tiny_timm
from cases.sampling import one_in
from cases.tiny_plans import VIT, tiny_plan

from prunerecover import load_pruned
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.model.paths import unwrap


class Compiled(Classifier):
    def __init__(self, depth: int = 4) -> None:
        super().__init__(depth)
        self.net = torch.compile(self.net)


class WithTeacher(Classifier):
    """Loads a teacher of the same class on construction, and keeps the teacher out of checkpoints."""

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


@pytest.mark.parametrize(
    ("case", "merged"), one_in(3, itertools.product([name for name in VIT if name != "dense"], [False, True]))
)
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


@pytest.mark.slow
@pytest.mark.parametrize("cls", one_in(2, [Classifier, Compiled]))
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
    """After whole blocks are removed, every name of the pruned network is also a name of the teacher."""
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
    """LightningCLI records the module's class and its arguments in the file."""
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
    with pytest.raises(ValueError, match=r"pruned network, but .* has 2 \('a', 'b'\). Pass the LightningModule class"):
        load_pruned(path)
    loaded = load_pruned(path, TwoNetworks).eval()
    assert all(torch.equal(getattr(loaded, n)(tiny_images()), getattr(module, n)(tiny_images())) for n in "ab")


def test_before_the_first_surgery(tmp_path: Path) -> None:
    module = stirred(Classifier())
    Ledger.of(module)
    path = save(module, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=r"\(it was saved before the first surgery\). Pass the LightningModule class"):
        load_pruned(path)
    assert torch.equal(load_pruned(path, Classifier).eval()(tiny_images()), module(tiny_images()))
