"""Language models on two ranks (CPU, gloo) learn the same as a single process on both ranks' samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.fits.language_ranks import Steady, pruned_fit
from cases.fits.ranks import two_ranks
from cases.fits.routed_lora import batches, fit

from prunerecover import load_pruned

pytestmark = pytest.mark.slow  # starting two ranks takes longest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(folder: Path) -> Any:
    return two_ranks(folder, "shared", "sharded", script="fits/language_ranks.py")


@pytest.mark.parametrize("name", ["plain", "accumulated", "resumed"])
def test_ranks_agree_after_every_step(results: Any, name: str) -> None:
    """Each step leaves out the same set on both ranks, and gives no gradient to adapters of the set's blocks."""
    found = results["shared"][name]
    assert found["agreed"] == found["steps"] > 0


@pytest.mark.parametrize(("name", "accumulate"), [("plain", 1), ("accumulated", 2)])
def test_two_ranks_learn_as_one_process(results: Any, folder: Path, tmp_path: Path, name: str, accumulate: int) -> None:
    settings = {"accumulate_grad_batches": accumulate, "data": batches(32, batch_size=8, shuffle=False)}
    alone, _ = fit(tmp_path, module=Steady(), **settings)  # type: ignore[arg-type]
    found = torch.load(folder / "shared" / f"{name}.pt", weights_only=True)
    for key, value in alone.state_dict().items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-5)


def test_resumed_ranks_end_where_uninterrupted_ones_do(results: Any) -> None:
    assert results["shared"]["resumed"]["digest"] == results["shared"]["plain"]["digest"]


def test_sharded_ranks_with_a_plan_learn_what_one_process_learns(results: Any, folder: Path, tmp_path: Path) -> None:
    """FSDP2, the plan known beforehand."""
    pruned_fit(tmp_path, Steady(), batches(32, batch_size=8, shuffle=False))
    first, alone, found = (
        load_pruned(path).state_dict()
        for path in (tmp_path / "epoch=0.ckpt", tmp_path / "epoch=1.ckpt", folder / "sharded" / "epoch=1.ckpt")
    )
    assert alone.keys() == found.keys()
    assert any((alone[key] - first[key]).abs().max() > 1e-3 for key in alone)
    for key, value in alone.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-5)
