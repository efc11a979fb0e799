"""Lightning checkpoints that cannot be opened: messages with the expectation and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.files.lightning_files import Classifier, rewrite, save
from cases.models.tiny import tiny_timm
from cases.tiny_plans import assert_same, structure
from torch import nn

from prunerecover import Plan, load_pruned, save_pruned
from prunerecover.checkpoint.ledger_record import KEY

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
    dense = tiny_timm()
    before = structure(dense)
    with pytest.raises(ValueError, match=r"cannot be read as one \(RuntimeError: .* has another checksum\)"):
        load_pruned(file, dense)
    assert_same(dense, before)


NEWER_LEDGER, NEWER_PLAN = {"schema": "prunerecover.ledger/2"}, {"schema": "prunerecover.plan/2"}
LACKS = "Expected the weights of the VisionTransformer .* lacks head.weight"
BESIDE = r"(?s)Expected Classifier to be built from .* it failed \(RuntimeError: .*Missing key.*beside.weight"
ANOTHER = "Expected the model that the plan was made for .* this model has 3 blocks"


@pytest.mark.parametrize(
    ("change", "model", "message"),
    [
        (lambda c: c[KEY].update(NEWER_LEDGER), None, "schema prunerecover.ledger/1, but .* has prunerecover.ledger/2"),
        (lambda c: c[KEY]["plans"]["net"].update(NEWER_PLAN), None, "prunerecover.plan/1, but got prunerecover.plan/2"),
        (lambda c: c["state_dict"].pop("net.head.weight"), None, LACKS),
        (lambda c: c["state_dict"].pop("net.head.weight"), Classifier, LACKS),
        (lambda c: c["state_dict"].pop("beside.weight"), Classifier, BESIDE),
        (lambda c: c["hyper_parameters"].update({"depth": 3}), Classifier, ANOTHER),
    ],
    ids=["newer ledger", "newer plan", "weights", "weights of a class", "weights beside", "another network"],
)
def test_files_that_do_not_fit(change: Any, model: type[nn.Module] | None, message: str, file: Path) -> None:
    rewrite(file, change)
    with pytest.raises(ValueError, match=message):
        load_pruned(file, model)


def constructor_of_an_older_file(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return the constructor without the hash that would reveal the edit."""
    source: dict[str, Any] = checkpoint[KEY]["plans"]["net"]["source"]
    source.pop("constructed", None)
    return source["constructor"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["state_dict"].update({3: torch.ones(1)}), "Expected weights by name in the 'state_dict' .* by 3"),
        (lambda c: c["state_dict"].update({"net.head.weight": 3}), "Expected tensors as the weights of 'net' .* int"),
        (
            lambda c: c["state_dict"].update({"net.head.bias": torch.ones(5, dtype=torch.int64)}),
            "has other kinds of numbers head.bias",
        ),
        (lambda c: c[KEY].update(plans=[1]), "Expected plans by path of their network in a ledger, but got list"),
        (lambda c: c[KEY].update(adapters=3), "Expected adapters by path of their network in a ledger, but got int"),
        (
            lambda c: constructor_of_an_older_file(c)["kwargs"].update({"depth": 10**9}),
            "Expected a constructor of a network that can be built, but got depth=1000000000",
        ),
        (lambda c: constructor_of_an_older_file(c).update(kwargs=1.5), "of a constructor by name, but got 1.5"),
    ],
    ids=["name", "value", "integers", "plans", "adapters", "depth", "kwargs"],
)
def test_entries_of_another_form(change: Any, message: str, file: Path) -> None:
    rewrite(file, change)
    with pytest.raises(ValueError, match=message):
        load_pruned(file)
