"""WidthPrune on experts, and under manual optimization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases import trainers
from cases.models.tiny import tiny_mixture
from cases.width.experts import counts, tokens
from cases.width.width_prune import Classifier, left, prune, rows, trainer
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from prunerecover import Budget
from prunerecover.callbacks import WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger


@pytest.mark.slow
def test_manual_optimization_without_a_loss(tmp_path: Path) -> None:
    class Manual(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(F.cross_entropy(self.net(batch[0]), batch[1]))
            optimizer.step()

    module = Manual()
    trainer(tmp_path, prune(importance="magnitude"), epochs=2).fit(module, rows(), rows(False))
    assert left(module) <= 0.5
    with pytest.raises(ValueError, match=r"Expected argument loss=.* 'magnitude' in width"):
        trainer(tmp_path / "again", prune(), epochs=2).fit(Manual(), rows(), rows(False))


class Language(pl.LightningModule):
    def __init__(self, name: str = "mixtral") -> None:
        super().__init__()
        self.net = tiny_mixture(name)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return self.net(**batch).loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 1e-4)


def fit_language(folder: Path, callback: WidthPrune, epochs: int = 2, name: str = "mixtral") -> Language:
    module, rows = Language(name), tokens(16)
    loader = DataLoader([{"input_ids": row, "labels": row} for row in rows], batch_size=4)
    trainers.fit(folder, module, callback, data=loader, epochs=epochs)
    return module


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": Budget(remove={"expert": 4}), "allocation": "fair_pruner"},
        {"budget": Budget(ratio={"expert": 1 / 3}), "schedule": {"every": 1, "step": 2}},
    ],
    ids=["tolerance", "in steps"],
)
def test_width_prune_removes_experts_and_trains_on(arguments: dict[str, Any], tmp_path: Path) -> None:
    module = fit_language(tmp_path, WidthPrune(calibration=16, **arguments))
    assert sum(counts(module)) == 8
    assert torch.isfinite(module.net(tokens()).logits).all()


@pytest.mark.slow
def test_steps_do_not_take_what_others_took_beyond_their_part(tmp_path: Path) -> None:
    """Each step asks for an expert and removes two: the router's groups must stay equal in size."""
    scheduled = WidthPrune(Budget(remove={"expert": 4}), schedule={"every": 1, "step": 1}, calibration=16)
    with pytest.warns(UserWarning, match="removed nothing: .*, or had surgeries before taken more than their part"):
        module = fit_language(tmp_path, scheduled, epochs=4, name="deepseek_v3")
    assert [len(event.units) for event in Ledger.of(module).events] == [2, 0, 2, 0]
    assert sum(counts(module.net)) == 16 - 4
