"""A search that is interrupted goes on behind its last result, and gives the plan that it would have given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.depth.interrupted import Interrupts
from cases.models.tiny import VOCABULARY, tiny_llama
from torch import nn

from prunerecover import Budget, Plan, plan_depth

TEXTS = torch.randint(3, VOCABULARY, (24, 12), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(24, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def convs() -> nn.Module:
    """Convolutions of one width, each with a BatchNorm, whose statistics are buffers."""
    torch.manual_seed(0)
    parts = [(nn.Conv2d(8 if i else 3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for i in range(5)]
    return nn.Sequential(*(part for three in parts for part in three), nn.Flatten(), nn.Linear(8 * 16 * 16, 5)).eval()


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(**batch, labels=batch["input_ids"]).loss


SEARCHES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "blocks that leave maps": (tiny_llama, {"remove": {"block": 2}}),
    "parts of blocks": (tiny_llama, {"remove": {"attention": 1, "mlp": 1}}),
    "a share of the cost": (tiny_llama, {"budget": Budget(macs=0.3)}),
    "fitted anew for every set": (tiny_llama, {"remove": {"attention": 2}, "search": "exact"}),
    "by a loss": (tiny_llama, {"remove": {"block": 2}, "search": "exact", "importance": "cross_entropy", "loss": loss}),
    "ranked once": (tiny_llama, {"remove": {"mlp": 2}, "search": "one_shot"}),
    "layers of any network": (convs, {"remove": {"layer": 2}}),
    "layers in rounds": (convs, {"remove": {"layer": 2}, "search": "rounds"}),
}


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> Interrupts:
    return Interrupts(monkeypatch)


def batches_for(model: nn.Module) -> list[Any]:
    if isinstance(model, nn.Sequential):
        return list(IMAGES.split(4))
    return [{"input_ids": some} for some in TEXTS.split(4)]


def planned(model: nn.Module, **how: Any) -> Plan:
    return plan_depth(model, batches=batches_for(model), **how)


def same(one: Plan, other: Plan) -> bool:
    return one == other and all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


@pytest.mark.parametrize("name", SEARCHES)
def test_it_goes_on_behind_the_last_result(name: str, tmp_path: Path, interrupts: Interrupts) -> None:
    build, how = SEARCHES[name]
    model = build()
    whole = planned(model, **how)
    interrupts.begin()
    assert same(planned(model, **how, store=tmp_path / "whole"), whole)
    results = interrupts.computed
    assert results >= 2
    for done in {1, results // 2, results - 1}:
        store = tmp_path / f"interrupted_{done}"
        interrupts.begin(done)
        with pytest.raises(KeyboardInterrupt):
            planned(model, **how, store=store)
        interrupts.begin()
        assert same(planned(model, **how, store=store), whole)
        assert interrupts.computed == results - done
    interrupts.begin()
    assert same(planned(build(), **how, store=tmp_path / "whole"), whole)
    assert interrupts.computed == 0


def test_another_search_finds_nothing_in_the_folder(tmp_path: Path, interrupts: Interrupts) -> None:
    model, batches = convs(), list(IMAGES.split(4))

    def computed(budget: dict[str, int], batches: list[torch.Tensor], **how: Any) -> int:
        interrupts.begin()
        plan_depth(model, remove=budget, batches=batches, store=tmp_path, **how)
        return interrupts.computed

    assert computed({"layer": 2}, batches) > 0
    assert computed({"layer": 2}, batches) == 0
    assert computed({"layer": 1}, batches) > 0
    assert computed({"layer": 2}, batches, seed=1) > 0
    assert computed({"layer": 2}, batches, search="greedy") > 0
    assert computed({"layer": 2}, batches[:-1]) > 0
    with torch.no_grad():
        next(model.buffers()).add_(1)
    assert computed({"layer": 2}, batches) > 0
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    assert computed({"layer": 2}, batches) > 0


def test_a_loss_reads_labels_that_tell_searches_apart(tmp_path: Path, interrupts: Interrupts) -> None:
    model, how = tiny_llama(), {"remove": {"block": 1}, "search": "exact", "importance": "cross_entropy"}

    def by_labels(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs, labels = batch
        return model(**inputs, labels=labels).loss

    for labels in (TEXTS, TEXTS.flip(0)):
        batches = [({"input_ids": some}, own) for some, own in zip(TEXTS.split(4), labels.split(4), strict=True)]
        interrupts.begin()
        plan_depth(model, batches=batches, loss=by_labels, store=tmp_path, **how)
        assert interrupts.computed > 0


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    model = convs()
    planned(model, remove={"layer": 1}, store=tmp_path)
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"Expected a result of a search at .*\.pt, but it cannot be read: .*Move the"):
        planned(model, remove={"layer": 1}, store=tmp_path)


def test_a_store_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a_file").touch()
    with pytest.raises(ValueError, match=r"Expected argument store to be a folder, .* but .*a_file is a file"):
        planned(convs(), remove={"layer": 1}, store=tmp_path / "a_file")
    with pytest.raises(TypeError, match="Expected argument store to be the path of a folder, but got int"):
        planned(convs(), remove={"layer": 1}, store=3)
