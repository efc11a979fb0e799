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
from safetensors.torch import load_file, save_file
from torch import nn

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


def test_no_such_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="a folder of save_pruned or a Lightning checkpoint, but .* does not"):
        load_pruned(tmp_path / "nowhere")


def test_a_folder_without_a_plan(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no plan.json. Is it the right one\?"):
        load_pruned(tmp_path)
    tiny_llama().save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="has no plan.json. It is one of transformers: use from_pretrained"):
        load_pruned(tmp_path)


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


def test_the_sidecar_is_not_needed(folder: Path) -> None:
    (folder / "plan.safetensors").unlink()
    assert torch.equal(logits(load_pruned(folder), "timm"), logits(pruned("everything")[0], "timm"))


def spoil(folder: Path, part: str, change: Callable[[Any], Any]) -> None:
    """Change the plan, the weights (then without their hash, as in version 0.1.0), or the bytes of their file."""
    plan, weights = json.loads((folder / "plan.json").read_text()), folder / "model.safetensors"
    if part == "bytes":
        weights.write_bytes(change(weights.read_bytes()))
    elif part == "weights":
        state = load_file(weights)
        change(state)
        save_file(state, weights)
        plan.pop("saved")
    else:
        change(plan)
    (folder / "plan.json").write_text(json.dumps(plan))


def turned(content: bytes, share: float) -> bytes:
    """Return bytes with one bit turned."""
    place = int(share * len(content))
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


HASHES = "Expected hashes by file name in 'saved' of a plan's file, but .*is wrong: "
CUT_OFF = "weights in safetensors at .*cannot be read.*Is the file cut off"
TURNED = "Expected the weights that .* but model.safetensors has another sha256. Copy"
ANOTHER = "the plan in .* to leave the model it describes, but it left another .* Was the file edited"
UNFIT = "Expected the weights of the VisionTransformer .* {}.*saved together"
SHAPE = {"head.bias": torch.ones(7)}
SPOILED: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "without a byte of weights": ("bytes", lambda content: b"", CUT_OFF),
    "cut off in the header": ("bytes", lambda content: content[:100], CUT_OFF),
    "cut off in the weights": ("bytes", lambda content: content[:-7], CUT_OFF),
    "one bit turned in the middle": ("bytes", lambda content: turned(content, 0.5), TURNED),
    "one bit turned near the end": ("bytes", lambda content: turned(content, 0.9), TURNED),
    "no hashes": ("plan", lambda plan: plan.update(saved=3), HASHES),
    "no hashes by name": ("plan", lambda plan: plan.update(saved={"sha256": 3}), HASHES),
    "no hash": ("plan", lambda plan: plan.update(saved={"sha256": {"model.safetensors": None}}), HASHES),
    "another schema": ("plan", lambda plan: plan.update(schema="prunerecover.plan/9"), "plan/1, but got .*plan/9"),
    "an edited plan": ("plan", lambda plan: plan["edits"].pop(0), ANOTHER),
    "lacking": ("weights", lambda state: state.pop("head.weight"), UNFIT.format("lacks head.weight")),
    "besides": ("weights", lambda state: state.update(extra=torch.ones(1)), UNFIT.format("has besides extra")),
    "shape": ("weights", lambda state: state.update(SHAPE), UNFIT.format(r"other shapes head.bias \(7,\) .* \(5,\)")),
    "empty": ("weights", dict.clear, UNFIT.format("lacks cls_token, pos_embed, .* and [0-9]+ more")),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_spoiled_folder_is_refused_and_changes_nothing(case: str, folder: Path) -> None:
    part, change, message = SPOILED[case]
    spoil(folder, part, change)
    dense = tiny_timm()
    for model in (None, dense):
        with unchanged(dense), pytest.raises(ValueError, match=message):
            load_pruned(folder, model)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="the weights of a pruned model at .*, but there is no such file"):
        load_pruned(folder)


def another_library(plan: dict[str, Any]) -> None:
    plan["source"]["constructor"]["kwargs"].update({"embed_dim": 64})
    plan["source"].pop("constructed")


def test_a_plan_of_another_version_of_the_library(folder: Path) -> None:
    spoil(folder, "plan", another_library)
    with pytest.raises(ValueError, match="installed version builds another. Install the plan's version of timm"):
        load_pruned(folder)


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
