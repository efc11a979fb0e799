"""`WidthPrune` removes routed experts during a fit, also in steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.models.tiny import tiny_mixture
from cases.width.experts import EXPERTS, counts, tokens
from torch import Tensor
from torch.utils.data import DataLoader

from prunerecover import Budget
from prunerecover.callbacks import WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger


class Language(pl.LightningModule):
    def __init__(self, name: str = "mixtral") -> None:
        super().__init__()
        self.net = tiny_mixture(name)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return self.net(**batch).loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 1e-4)


def fit(folder: Path, callback: WidthPrune, epochs: int = 2, name: str = "mixtral") -> Language:
    module, rows = Language(name), tokens(16)
    loader = DataLoader([{"input_ids": row, "labels": row} for row in rows], batch_size=4)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    pl.Trainer(max_epochs=epochs, callbacks=[callback], default_root_dir=folder, **quiet).fit(module, loader)
    return module


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": Budget(params=0.2), "kinds": EXPERTS},
        {"budget": Budget(remove={"expert": 4}), "allocation": "tolerance"},
        {"budget": Budget(ratio={"expert": 1 / 3}), "schedule": {"every": 1, "step": 2}},
    ],
    ids=["share", "tolerance", "in steps"],
)
def test_width_prune_removes_experts_and_trains_on(arguments: dict[str, Any], tmp_path: Path) -> None:
    module = fit(tmp_path, WidthPrune(calibration=16, **arguments))
    if arguments["budget"].in_units:
        assert sum(counts(module)) == 8
    else:
        sizes = [sum(p.numel() for p in network.parameters()) for network in (module.net, Language().net)]
        assert sizes[0] <= 0.8 * sizes[1]
    assert torch.isfinite(module.net(tokens()).logits).all()


@pytest.mark.slow
def test_steps_do_not_take_what_others_took_beyond_their_part(tmp_path: Path) -> None:
    """One expert per step is asked for, and two go: those among which the router chooses must stay equally many."""
    scheduled = WidthPrune(Budget(remove={"expert": 4}), schedule={"every": 1, "step": 1}, calibration=16)
    with pytest.warns(UserWarning, match="removed nothing: .*, or had surgeries before taken more than their part"):
        module = fit(tmp_path, scheduled, epochs=4, name="deepseek_v3")
    assert [len(event.units) for event in Ledger.of(module).events] == [2, 0, 2, 0]
    assert sum(counts(module.net)) == 16 - 4
