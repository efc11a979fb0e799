"""LoRARecover: recover a pruned network by low-rank adapters (LoRA, Hu 2021, arXiv 2106.09685), by means of peft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_info
from pydantic import ValidationError

from prunerecover.callbacks.ledger.callback import LedgerCallback
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.ledger.optimizer_groups import check_held
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.callbacks.surgery.artifacts import is_dry_run
from prunerecover.callbacks.surgery.in_trainer import inject_adapters_in_trainer, merge_adapters_in_trainer
from prunerecover.callbacks.surgery.sharding import SHARDED, save_copy
from prunerecover.model.arguments import check_seed, check_whole
from prunerecover.model.paths import get_module, unwrap
from prunerecover.recovery.lora import LoraSettings, plan_adapters


class LoRARecover(LedgerCallback):
    """Freeze the linears of a network inside any LightningModule, and train low-rank adapters on them.

    Adapters are injected before the first step of epoch `start`, after all surgery of the epoch, whatever the order of
    the callbacks. Adapters join the optimizer groups of the adapted weights: learning rates, schedules and weight decay
    go on. Frozen parameters leave the optimizer with their moments. A later surgery merges the adapters into the
    weights, works on the plain network, and is followed by the injection of fresh adapters. Adapters of weights in half
    precision are float32, as in peft, also with `Trainer(precision="bf16-true")`.

    Checkpoints hold the adapters and their places. The live module keeps the adapters after the fit. In `pruned/`
    beside the checkpoints, and in a network opened from a checkpoint by `load_pruned`, adapters are merged into
    ordinary weights.

    Args:
        rank: Rank of the adapters.
        alpha: Numerator of the adapters' scale alpha / rank; None: 2 * rank.
        dropout: Share of an adapter's inputs set to zero in training.
        target_modules: Modules to adapt: shell patterns of paths or of path ends, e.g. "qkv" or "blocks.*.mlp.fc?".
            None: every linear of the blocks (without known blocks: every linear but the last).
        modules_to_save: Modules to train in full, by patterns as above, e.g. "head". None: the modules after the
            blocks, the final norm and the head; without known blocks, the last linear. Biases, norms and scales train
            in full, too, unless the list is empty. Replacements of branches and activations train in full in any case,
            except linears.
        start: First epoch in which adapters train.
        target: Path of the network inside the LightningModule; default: the target of the pruning callbacks, or the
            only network.
        seed: Seed of the adapters' initial values.

    Raises:
        ValueError: If an argument is out of range.
    """

    adapts = True

    def __init__(
        self,
        rank: int = 16,
        alpha: float | None = None,
        dropout: float = 0.0,
        target_modules: Sequence[str] | None = None,
        modules_to_save: Sequence[str] | None = None,
        start: int = 0,
        target: str | None = None,
        seed: int = 0,
    ) -> None:
        try:
            settings = LoraSettings(
                rank=rank,
                alpha=1.0 if alpha is None else alpha,
                dropout=dropout,
                target_modules=_patterns(target_modules),
                modules_to_save=_patterns(modules_to_save),
            )
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise ValueError(
                f"Expected argument {name} of {type(self).__name__} in its range, but got {first['input']!r}: "
                f"{first['msg']}. Usual are rank=16, alpha=32 and dropout=0.05."
            ) from None
        self.settings = settings if alpha is not None else settings.model_copy(update={"alpha": 2.0 * settings.rank})
        check_whole("start", start, 0)
        check_seed(seed)
        self.start, self.target, self.seed = start, target, seed

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Install the ledger before any checkpoint is read.

        Raises:
            ValueError: With a strategy that shards the model.
        """
        super().setup(trainer, pl_module, stage)
        if isinstance(trainer.strategy, SHARDED):
            raise ValueError(
                f"Expected a strategy that keeps the model whole, but got {type(trainer.strategy).__name__}, which "
                "shards it before adapters could be injected. Use DDP or one device; adapters need little memory."
            )

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Resume from the ledger of a checkpoint; refuse settings and networks that cannot be adapted later."""
        super().on_fit_start(trainer, pl_module)
        ledger, target = Ledger.of(pl_module), self.network_path(trainer, pl_module)
        network = unwrap(get_module(pl_module, target))
        mine = [c for c in trainer.callbacks if isinstance(c, LoRARecover)]  # type: ignore[attr-defined]
        alike = [c for c in mine if c.network_path(trainer, pl_module) == target]
        if len(alike) > 1:
            raise ValueError(
                f"Expected one LoRARecover for the network at '{target}', but got {len(alike)}. Remove one, or give "
                "one of them another target."
            )
        injected = ledger.adapters.get(target)
        if injected is None:
            plan_adapters(network, self.settings)
            self._check_start(trainer)
            return
        check_held(trainer.optimizers, network)
        if ledger.from_checkpoint and injected.settings != self.settings:
            raise ValueError(
                f"Expected {type(self).__name__} with the arguments of the run that is resumed ({injected.settings}), "
                f"but got {self.settings}. Resume with the same ones, or load_pruned the checkpoint and start a new "
                "fit."
            )

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Inject adapters when epoch `start` begins, and again after a surgery has merged them."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if trainer.current_epoch < self.start and not is_dry_run(trainer):
            return
        ledger, target = Ledger.of(pl_module), self.network_path(trainer, pl_module)
        injected = ledger.adapters.get(target)
        if injected is not None and injected.settings == self.settings:
            return
        merge_adapters_in_trainer(trainer, pl_module, target)  # adapters of an earlier fit with other settings
        network = unwrap(get_module(pl_module, target))
        adapters = plan_adapters(network, self.settings)
        inject_adapters_in_trainer(trainer, pl_module, target, adapters, self.seed)
        count = sum(p.numel() for p in network.parameters())
        trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
        rank_zero_info(
            f"prunerecover: epoch {trainer.current_epoch}, adapters of rank {self.settings.rank} on "
            f"{len(adapters.modules)} modules; {trained:,} of {count:,} parameters train."
        )

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save a copy with merged adapters beside the checkpoints, unless a pruning callback decides about the copy."""
        if not any(isinstance(c, PruneCallback) for c in trainer.callbacks):  # type: ignore[attr-defined]
            save_copy(trainer, pl_module)

    def _check_start(self, trainer: pl.Trainer) -> None:
        last = trainer.max_epochs
        if not is_dry_run(trainer) and last is not None and 0 <= last <= self.start:
            raise ValueError(
                f"Expected {type(self).__name__} to start before max_epochs={last}, but got start={self.start} "
                "(counted from 0). Start earlier or train longer."
            )


def _patterns(patterns: Sequence[str] | None) -> tuple[str, ...] | None:
    return (patterns,) if isinstance(patterns, str) else None if patterns is None else tuple(patterns)
