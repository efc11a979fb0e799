"""Saving never destroys foreign content, and loading never returns a model in contradiction to plan and weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from cases.engine import unchanged
from cases.models.tiny import tiny_llama, tiny_timm
from cases.tiny_plans import logits, pruned, tiny_plan
from torch import Tensor, nn

import prunerecover.checkpoint.pruned_folder as pruned_folder
import prunerecover.checkpoint.weights_file as weights_file
from prunerecover import apply_plan, load_pruned, merge, save_pruned
from prunerecover.surgery.apply_edits import check_source

# Refusals of save_pruned


@pytest.mark.parametrize(
    ("edit", "message"),
    [(lambda model: None, "still dense: apply_plan"), (lambda model: merge(model), r"Pass plan \+ merge\(model\)")],
    ids=["dense", "merged"],
)
def test_model_and_plan_must_belong_together(edit: Callable[[nn.Module], Any], message: str, tmp_path: Path) -> None:
    model = tiny_timm()
    plan = tiny_plan(model, (1, "activation", "slope_bias"))
    if "merge" in message:
        apply_plan(model, plan)
    edit(model)
    with pytest.raises(ValueError, match=f"Expected the model that the plan leaves .* but got another .*{message}"):
        save_pruned(model, plan, tmp_path / "pruned")
    assert not list(tmp_path.iterdir())


def test_a_model_without_values(tmp_path: Path) -> None:
    model, plan = pruned("attention zero")
    with pytest.raises(ValueError, match="Expected a model with values, but got .* and .* more on the meta device"):
        save_pruned(model.to("meta"), plan, tmp_path / "pruned")
    assert not list(tmp_path.iterdir())


def test_an_own_or_empty_folder_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "pruned"
    path.mkdir(parents=True)
    save_pruned(*pruned("attention affine"), path)
    model, plan = pruned("attention zero")
    save_pruned(model, plan, path)
    assert {p.name for p in path.iterdir()} == {"plan.json", "model.safetensors"}
    assert [p.name for p in path.parent.iterdir()] == ["pruned"]
    assert torch.equal(logits(load_pruned(path), "timm"), logits(model, "timm"))


@pytest.mark.parametrize("foreign", ["pruned/notes.txt", "pruned/config.json", "pruned"])
def test_what_others_wrote_is_not_touched(foreign: str, tmp_path: Path) -> None:
    (tmp_path / foreign).parent.mkdir(exist_ok=True)
    (tmp_path / foreign).write_text("mine")
    with pytest.raises(FileExistsError, match="Expected nothing at .*, but got .* there. Nothing was written"):
        save_pruned(*pruned("attention zero"), tmp_path / "pruned")
    assert (tmp_path / foreign).read_text() == "mine"
    assert len(list(tmp_path.rglob("*"))) == len(Path(foreign).parts)


def full(*_: object) -> NoReturn:
    raise OSError("disk full")


def full_at_the_move(path: Path, target: Path, rename: Callable[[Path, Path], Path] = Path.rename) -> Path:
    return rename(path, target) if path.suffix != ".new" else full()


@pytest.mark.parametrize(
    ("where", "name", "failing"),
    [(pruned_folder, "save_weights", full), (pruned_folder, "_save_config", full), (Path, "rename", full_at_the_move)],
)
def test_a_save_that_fails_leaves_the_former_folder(
    where: object, name: str, failing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, plan = pruned("attention zero")
    path = save_pruned(model, plan, tmp_path / "pruned")
    monkeypatch.setattr(where, name, failing)
    with pytest.raises(OSError, match="disk full"):
        save_pruned(*pruned("attention affine"), path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["pruned"]
    assert torch.equal(logits(load_pruned(path), "timm"), logits(model, "timm"))


# Refusals of load_pruned


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_pruned(*pruned("everything"), tmp_path / "pruned")


def edit_plan(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    data = json.loads((folder / "plan.json").read_text())
    edit(data)
    (folder / "plan.json").write_text(json.dumps(data))


def test_no_such_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="a folder of save_pruned or a Lightning checkpoint, but .* does not"):
        load_pruned(tmp_path / "nowhere")


def test_a_folder_without_a_plan(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no plan.json. Is it the right one\?"):
        load_pruned(tmp_path)
    tiny_llama().save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="has no plan.json. It is one of transformers: use from_pretrained"):
        load_pruned(tmp_path)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="the weights of a pruned model at .*, but there is no such file"):
        load_pruned(folder)


def test_weights_of_other_shapes_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may claim to hold 20 GB, and take 4 KiB on the disk."""
    said = {"head.weight": {"dtype": "F32", "shape": [5, 10**9], "data_offsets": [0, 20 * 10**9]}}
    header = json.dumps(said).encode()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + 20 * 10**9)
    monkeypatch.setattr(weights_file, "sha256_of", lambda path: pytest.fail("20 GB were read"))
    with pytest.raises(ValueError, match="Expected the weights of the .* has other shapes head.weight .5, 1000000000"):
        load_pruned(folder)


def test_weights_that_are_cut_off(folder: Path) -> None:
    weights = folder / "model.safetensors"
    for keep in (0, 100, -7):
        content = weights.read_bytes()
        weights.write_bytes(content[:keep])
        with pytest.raises(ValueError, match="weights in safetensors at .*cannot be read.*Is the file cut off"):
            load_pruned(folder)
        weights.write_bytes(content)


@pytest.mark.parametrize("where", [0.5, 0.9])
def test_weights_with_one_bit_turned(where: float, folder: Path) -> None:
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[int(where * len(content))] ^= 1
    weights.write_bytes(content)
    dense, message = tiny_timm(), "Expected the weights that .* but model.safetensors has another sha256. Copy"
    with unchanged(dense), pytest.raises(ValueError, match=message):
        load_pruned(folder, dense)


def another_library(plan: dict[str, Any]) -> None:
    plan["source"]["constructor"]["kwargs"].update({"embed_dim": 64})
    plan["source"].pop("constructed")


HASHES = "Expected hashes by file name in 'saved' of a plan's file, but .*is wrong: "


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda plan: plan.update(saved=3), HASHES),
        (lambda plan: plan.update(saved={"sha256": 3}), HASHES),
        (lambda plan: plan.update(saved={"sha256": {"model.safetensors": None}}), HASHES),
        (lambda plan: plan.update(schema="prunerecover.plan/9"), "prunerecover.plan/1, but got prunerecover.plan/9"),
        (another_library, "but the installed version builds another. Install the plan's version of timm"),
    ],
)
def test_plans_that_are_not_of_this_folder_or_version(edit: Any, message: str, folder: Path) -> None:
    edit_plan(folder, edit)
    with pytest.raises(ValueError, match=message):
        load_pruned(folder)


def test_the_sidecar_is_not_needed(folder: Path) -> None:
    (folder / "plan.safetensors").unlink()
    assert torch.equal(logits(load_pruned(folder), "timm"), logits(pruned("everything")[0], "timm"))


def test_a_plan_that_was_edited(folder: Path) -> None:
    edit_plan(folder, lambda plan: plan["edits"].pop(0))
    dense, message = tiny_timm(), "the plan in .* to leave the model it describes, but it left another .* Was the file"
    for model in (None, dense):
        with unchanged(dense), pytest.raises(ValueError, match=message):
            load_pruned(folder, model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("head.weight"), "lacks head.weight"),
        (lambda state: state.update({"extra": torch.ones(1)}), "has besides extra"),
        (lambda state: state.update({"head.bias": torch.ones(7)}), r"other shapes head.bias \(7,\) instead of \(5,\)"),
        (lambda state: state.clear(), "lacks cls_token, pos_embed, .* and [0-9]+ more"),
    ],
    ids=["lacking", "besides", "shape", "empty"],
)
def test_weights_that_do_not_fit(change: Callable[[dict[str, Tensor]], Any], message: str, folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")
    edit_plan(folder, lambda plan: plan.pop("saved"))  # as folders of version 0.1.0, which have no hash of the weights
    dense, match = tiny_timm(), f"Expected the weights of the VisionTransformer .* {message}.*saved together"
    for model in (None, dense):
        with unchanged(dense), pytest.raises(ValueError, match=match):
            load_pruned(folder, model)


def test_buffers_that_no_file_holds(tmp_path: Path) -> None:
    model, plan = pruned("llama attention")
    path = save_pruned(model, plan, tmp_path / "pruned")
    empty = tiny_llama().to("meta")
    with pytest.raises(ValueError, match="buffers are in memory, but got model.rotary_emb.inv_freq.*include_buffers"):
        load_pruned(path, empty)
    check_source(empty, plan)


@pytest.mark.parametrize("model", [nn.Linear, "model", 3])
def test_what_is_no_model(model: Any, folder: Path) -> None:
    with pytest.raises(TypeError, match="Expected a LightningModule class, a network or None, but got"):
        load_pruned(folder, model)
