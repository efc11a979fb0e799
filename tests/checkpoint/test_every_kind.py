"""Files of each kind, by `write_every_kind.py`, open as the written networks, bit by bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cases.files import every_kind as cases
from cases.old_files import made_here
from safetensors.torch import load_file
from torch import Tensor

from prunerecover import Budget, Plan, plan_depth, plan_width, save_pruned

OLD = Path(__file__).parent / "every_kind"
EXPECTED = load_file(OLD / "expected.safetensors")
HELD = json.loads((OLD / "held.json").read_text())
PLANS = (*(f"{name}.json" for name in cases.PLANS), *(f"{folder}/plan.json" for folder in cases.FOLDERS))
COMPUTED = ("adapters.ckpt",)  # adapters go into weights as the file is opened

pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed")  # fits go on in another folder


def assert_expected(found: Tensor, name: str) -> None:
    """The same bit for bit where the files were written; elsewhere kernels may add in another order."""
    assert found.shape == EXPECTED[name].shape
    assert not made_here(OLD) or torch.equal(found, EXPECTED[name])
    scale = EXPECTED[name].double().abs().max().item()
    torch.testing.assert_close(found, EXPECTED[name], rtol=1e-6, atol=2e-6 * scale)


def test_every_file_is_looked_at() -> None:
    known = {*cases.NETWORKS, "expected.safetensors", "held.json", "routed", "scores.safetensors"}
    known |= {f"{name}.safetensors" for name in cases.PLANS if Plan.load(OLD / f"{name}.json").tensors}
    assert {path.name for path in OLD.iterdir()} == known
    assert HELD.keys() == set(cases.NETWORKS)
    assert EXPECTED.keys() == {*cases.NETWORKS, "routed", *(f"{name} resumed" for name in cases.CHECKPOINTS)}


@pytest.mark.parametrize("name", cases.NETWORKS)
def test_a_network_holds_and_computes_the_same(name: str) -> None:
    network = cases.opened(name, OLD)
    assert cases.contents(network) == HELD[name] or (name in COMPUTED and not made_here(OLD))
    assert_expected(cases.outputs(network), name)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_says_what_its_file_says(name: str, tmp_path: Path) -> None:
    plan, said = Plan.load(OLD / name), json.loads((OLD / name).read_text())
    assert plan.to_dict() == {key: value for key, value in said.items() if key != "saved"}
    assert Plan.load(plan.save(tmp_path / "plan.json")) == plan
    assert str(plan)


@pytest.mark.parametrize("name", cases.FOLDERS)
def test_a_folder_that_is_saved_again_is_the_same(name: str, tmp_path: Path) -> None:
    again = save_pruned(cases.opened(name, OLD), Plan.load(OLD / name / "plan.json"), tmp_path / name)
    assert {path.name for path in again.iterdir()} == {path.name for path in (OLD / name).iterdir()}
    old, new = (load_file(folder / "model.safetensors") for folder in (OLD / name, again))
    assert old.keys() == new.keys()
    assert all(torch.equal(new[key], value) for key, value in old.items())


def test_a_routed_folder_takes_the_same_sets() -> None:
    assert torch.equal(cases.answers(cases.reopened(OLD)), EXPECTED["routed"].long())


@pytest.mark.slow
def test_scores_on_disk_rank_the_units() -> None:
    vit, rows, path = cases.dense("vit"), cases.rows("vit"), OLD / "scores.safetensors"
    plans = {
        "affine": plan_depth(vit, remove={"attention": 1, "mlp": 1, "activation": 1}, batches=rows, scores=path),
        "neurons": plan_width(vit, Budget(macs=0.3), batches=rows, scores=path, allocation="per_cost"),
    }
    for name, plan in plans.items():
        assert plan.removed == Plan.load(OLD / f"{name}.json").removed


@pytest.mark.parametrize("name", cases.CHECKPOINTS)
def test_a_fit_goes_on_to_the_same_end(name: str, tmp_path: Path) -> None:
    found = cases.outputs(cases.fit(name, tmp_path, OLD / f"{name}.ckpt").net)
    torch.testing.assert_close(found, EXPECTED[f"{name} resumed"], rtol=1e-4, atol=1e-4)
    assert not made_here(OLD) or torch.equal(found, EXPECTED[f"{name} resumed"])
