"""docs/migrating.md: the tables' statements on both libraries hold where both run."""

from __future__ import annotations

import copy
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_pruning as tp
from cases.docs.blocks import read, run_typed
from torch import nn
from torchvision.models import resnet18

import prunerecover

PAGE = "docs/migrating.md"
THEIRS, OURS = (re.findall(rf"^\|{skipped} ([^|]*) \|", read(PAGE), re.MULTILINE) for skipped in ("", "[^|]*\\|"))


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        needed = {"Code for Model Optimizer": "modelopt", "Code for prunerecover": "nothing"}
        return run_typed(PAGE, folder, {}, {}, needed)


def widths(network: nn.Module) -> list[int]:
    return [module.out_channels for module in network.modules() if isinstance(module, nn.Conv2d)]


@pytest.mark.slow
def test_the_same_scores_and_shares_leave_the_same_widths(typed: dict[str, Any]) -> None:
    assert widths(typed["theirs"]) == widths(typed["ours"]) != widths(typed["model"])


@pytest.mark.slow
def test_macs_are_counted_alike_and_half_of_the_channels_is_more_than_half_of_them(typed: dict[str, Any]) -> None:
    theirs, _ = tp.utils.count_ops_and_params(copy.deepcopy(typed["ours"]), typed["example"])
    macs, dense = (prunerecover.measure(typed[name], typed["example"]).macs for name in ("ours", "model"))
    assert theirs == pytest.approx(macs, rel=0.05)
    assert macs < 0.4 * dense


def test_arguments_of_torch_pruning_are_there() -> None:
    parameters = inspect.signature(tp.pruner.BasePruner).parameters
    said = {name for cell in THEIRS for name in re.findall(r"\b([a-z_]+)=", cell) if "mtp" not in cell}
    said -= {"mode", "constraints", "dummy_input", "config"}
    assert {"pruning_ratio", "isomorphic", "round_to", "prune_head_dims"} <= said <= set(parameters)


def test_functions_of_ours_are_there() -> None:
    said = {name for cell in OURS for name in re.findall(r"(?<![.\w])([A-Za-z_]+)\(", cell)}
    assert {"plan_width", "reconstruct", "find_sites", "PruneSchedule"} <= said
    assert [name for name in said if not hasattr(prunerecover, name)] == []


@pytest.mark.slow
@pytest.mark.skipif(not (find_spec("modelopt") and find_spec("torchprofile")), reason="needs nvidia-modelopt")
def test_model_optimizer_meets_the_constraint_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = run_typed(PAGE, tmp_path, {}, {}, {"Code for prunerecover": "nothing"})
    left, dense = (sum(map(torch.numel, one.parameters())) for one in (found["smaller"], resnet18(num_classes=4)))
    assert left <= 0.6 * dense
