"""Model cards: what a repository on a hub says, and that what it says works."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases.models.habits import tiny_vit
from cases.models.tiny import tiny_llama
from huggingface_hub import ModelCard
from torch import nn

from prunerecover import Plan, apply_plan, compare, load_pruned, plan_depth, save_model_card, save_pruned
from prunerecover.model.copies import deep_copy

Pruned = tuple[nn.Module, nn.Module, Plan]
IMAGES = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def vit() -> Pruned:
    dense = tiny_vit().eval()
    plan = plan_depth(dense, remove={"attention": 1}, batches=[IMAGES])
    pruned = deep_copy(dense)
    apply_plan(pruned, plan)
    return dense, pruned, plan


def test_the_card_has_the_table_of_before_and_after(tmp_path: Path, vit: Pruned) -> None:
    dense, pruned, plan = vit
    report = compare(dense, pruned, IMAGES, plan=plan, pairs=0)
    save_pruned(pruned, plan, tmp_path / "my-vit")
    path = save_model_card(tmp_path / "my-vit", report, base="timm/vit", license="apache-2.0", datasets=["imagenet-1k"])
    card = ModelCard.load(path)
    assert card.data.base_model == "timm/vit"
    assert card.data.license == "apache-2.0"
    assert card.data.datasets == ["imagenet-1k"]
    assert card.data.library_name == "prunerecover"
    assert card.text.strip().startswith("# my-vit\n")
    parameters = next(line for line in report.to_markdown().splitlines() if line.startswith("| Parameters"))
    assert parameters in card.text
    assert "## Before and after pruning" in card.text
    assert "### What was removed" in card.text


def test_a_folder_with_a_card_still_loads(tmp_path: Path, vit: Pruned) -> None:
    _, pruned, plan = vit
    save_pruned(pruned, plan, tmp_path / "vit")
    save_model_card(tmp_path / "vit")
    save_model_card(tmp_path / "vit")  # written again, over its own
    torch.testing.assert_close(load_pruned(tmp_path / "vit")(IMAGES), pruned(IMAGES))


def test_its_lines_load_the_model(tmp_path: Path, vit: Pruned, monkeypatch: pytest.MonkeyPatch) -> None:
    _, pruned, plan = vit
    save_pruned(pruned, plan, tmp_path / "vit")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name: str(tmp_path / "vit"))
    torch.testing.assert_close(loaded_by(save_model_card(tmp_path / "vit"))(IMAGES), pruned(IMAGES))


def test_a_model_of_transformers_is_loaded_by_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llama, ids = tiny_llama(), torch.arange(3, 35).reshape(8, 4)
    plan = plan_depth(llama, remove={"block": 1}, batches=[{"input_ids": ids}], replace="zero")
    apply_plan(llama, plan)
    save_pruned(llama, plan, tmp_path / "hub-id")
    path = save_model_card(tmp_path / "hub-id")
    monkeypatch.chdir(tmp_path)
    torch.testing.assert_close(loaded_by(path)(input_ids=ids).logits, llama(input_ids=ids).logits)


def test_a_network_that_cannot_be_rebuilt_is_asked_for(tmp_path: Path) -> None:
    save_pruned(nn.Linear(2, 2), Plan(), tmp_path / "own")
    assert 'load_pruned(snapshot_download("hub-id"), model=dense)' in save_model_card(tmp_path / "own").read_text()


def test_no_pruned_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no plan\.json\. Is it the right one"):
        save_model_card(tmp_path)


def test_a_card_of_somebody_else_stays(tmp_path: Path, vit: Pruned) -> None:
    _, pruned, plan = vit
    save_pruned(pruned, plan, tmp_path / "vit")
    (tmp_path / "vit" / "README.md").write_text("mine")
    with pytest.raises(FileExistsError, match=r"of somebody else.*Move it away"):
        save_model_card(tmp_path / "vit")
    assert (tmp_path / "vit" / "README.md").read_text() == "mine"


def loaded_by(card: Path) -> nn.Module:
    """Run the card's own lines."""
    code = card.read_text().split("```python\n")[1].split("```")[0]
    scope: dict[str, nn.Module] = {}
    exec(code, scope)
    return scope["model"].eval()
