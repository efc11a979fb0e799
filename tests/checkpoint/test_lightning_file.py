"""Lightning checkpoints of pruned runs, opened as the network or as the LightningModule, or refused by message."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.engine import unchanged
from cases.files.lightning_files import Classifier, prune, rewrite, save, stirred
from cases.models.tiny import tiny_images, tiny_inputs, tiny_llama, tiny_timm
from cases.sampling import one_in
from cases.tiny_plans import VIT, tiny_plan
from torch import nn

from prunerecover import Plan, load_pruned, save_pruned
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.checkpoint.ledger_record import KEY
from prunerecover.model.paths import unwrap

Saved = Callable[..., Path]


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
def test_reloaded_is_saved(case: str, merged: bool, saved: Saved) -> None:
    module = Classifier(width=7)
    path = saved(module, case, merged)
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
def test_compiled_modules(cls: type[pl.LightningModule], saved: Saved) -> None:
    module = Compiled()
    path = saved(module)
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
def test_a_teacher_of_the_same_class_is_loaded_as_ever(case: str, saved: Saved, tmp_path: Path) -> None:
    """After whole blocks are removed, every name of the pruned network is also a name of the teacher."""
    teacher = stirred(Classifier())
    WithTeacher.teacher_path = str(save(teacher, tmp_path / "teacher.ckpt"))
    module = WithTeacher()
    loaded = load_pruned(saved(module, case), WithTeacher)
    assert torch.equal(loaded.eval()(tiny_images()), module(tiny_images()))
    assert torch.equal(loaded.teacher.eval()(tiny_images()), teacher(tiny_images()))
    assert len(loaded.teacher.net.blocks) == 4


@pytest.mark.parametrize("asked", [Classifier, pl.LightningModule])
def test_files_of_lightnings_command_line(asked: type[pl.LightningModule], saved: Saved) -> None:
    """LightningCLI records the module's class and its arguments in the file."""
    module = Classifier(width=7)
    path = saved(module)
    hparams: dict[str, Any] = {"_instantiator": "lightning.pytorch.cli.instantiate_module", "width": 7}
    if asked is pl.LightningModule:
        hparams["_class_path"] = f"{Classifier.__module__}.{Classifier.__qualname__}"
        assert Classifier.__module__ in sys.modules
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


# Refusals


def test_a_run_without_pruning(tmp_path: Path) -> None:
    path = save(Classifier(), tmp_path / "last.ckpt")
    for model in (None, Classifier, tiny_timm()):
        with pytest.raises(ValueError, match="by a run without DepthPrune. It is dense: use .* load_from_checkpoint"):
            load_pruned(path, model)


def test_weights_alone(tmp_path: Path) -> None:
    torch.save(tiny_timm().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="holds no 'state_dict'. Weights alone do not tell"):
        load_pruned(tmp_path / "weights.pt")


def test_files_that_cannot_be_read(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    for wrong in (content[:-1000], b"", b"{}", b"not a checkpoint"):
        (tmp_path / "wrong.ckpt").write_bytes(wrong)
        with pytest.raises(ValueError, match=r"cannot be read as one .* Is the file cut off\? Copy it again"):
            load_pruned(tmp_path / "wrong.ckpt")


def test_a_class_that_loads_other_weights(file: Path) -> None:
    class Other(Classifier):
        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["state_dict"] = self.state_dict()

    with pytest.raises(ValueError, match="Expected Other to load the weights of net .* but it loaded other weights"):
        load_pruned(file, Other)


def test_a_class_for_a_folder(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Expected a Lightning checkpoint for the class Classifier, but .* is a folder"):
        load_pruned(tmp_path, Classifier)


def test_an_instance_for_a_folder(tmp_path: Path) -> None:
    save_pruned(tiny_timm(), Plan(), tmp_path / "pruned")
    with pytest.raises(TypeError, match="Expected the network inside Classifier for a folder, which holds only the"):
        load_pruned(tmp_path / "pruned", Classifier())


def test_a_file_with_one_bit_turned_in_its_weights(file: Path) -> None:
    content = bytearray(file.read_bytes())
    weight = torch.load(file, weights_only=True)["state_dict"]["net.head.weight"].numpy().tobytes()
    content[content.index(weight) + 5] ^= 64
    file.write_bytes(content)
    dense, message = tiny_timm(), r"cannot be read as one \(RuntimeError: .* has another checksum\)"
    with unchanged(dense), pytest.raises(ValueError, match=message):
        load_pruned(file, dense)


def built_by(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return the constructor of an older file, without the hash that would reveal the edit."""
    source: dict[str, Any] = checkpoint[KEY]["plans"]["net"]["source"]
    source.pop("constructed", None)
    return source["constructor"]


NEWER = {"schema": "prunerecover.plan/2"}
WHOLE = torch.ones(5, dtype=torch.int64)
LACKS = "Expected the weights of the VisionTransformer .* lacks head.weight"
BESIDE = r"(?s)Expected Classifier to be built from .* it failed \(RuntimeError: .*Missing key.*beside.weight"
SPOILED: dict[str, tuple[Callable[[Any], Any], type[nn.Module] | None, str]] = {
    "newer ledger": (
        lambda c: c[KEY].update(schema="prunerecover.ledger/2"),
        None,
        "schema prunerecover.ledger/1, but .* has prunerecover.ledger/2",
    ),
    "newer plan": (lambda c: c[KEY]["plans"]["net"].update(NEWER), None, "plan/1, but got prunerecover.plan/2"),
    "weights": (lambda c: c["state_dict"].pop("net.head.weight"), None, LACKS),
    "weights of a class": (lambda c: c["state_dict"].pop("net.head.weight"), Classifier, LACKS),
    "weights beside": (lambda c: c["state_dict"].pop("beside.weight"), Classifier, BESIDE),
    "another network": (
        lambda c: c["hyper_parameters"].update({"depth": 3}),
        Classifier,
        "Expected the model that the plan was made for .* this model has 3 blocks",
    ),
    "name": (lambda c: c["state_dict"].update({3: WHOLE}), None, "weights by name in the 'state_dict' .* by 3"),
    "value": (lambda c: c["state_dict"].update({"net.head.weight": 3}), None, "tensors as the weights of 'net' .* int"),
    "integers": (lambda c: c["state_dict"].update({"net.head.bias": WHOLE}), None, "other kinds of numbers head.bias"),
    "plans": (lambda c: c[KEY].update(plans=[1]), None, "plans by path of their network in a ledger, but got list"),
    "adapters": (lambda c: c[KEY].update(adapters=3), None, "adapters by path of their network in .*, but got int"),
    "depth": (lambda c: built_by(c)["kwargs"].update({"depth": 10**9}), None, "can be built, but got depth=1000000000"),
    "kwargs": (lambda c: built_by(c).update(kwargs=1.5), None, "of a constructor by name, but got 1.5"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_spoiled_file_is_refused(case: str, file: Path) -> None:
    change, model, message = SPOILED[case]
    rewrite(file, change)
    with pytest.raises(ValueError, match=message):
        load_pruned(file, model)
