"""Base class of all callbacks that read or write the ledger."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as pl

from prunerecover.callbacks.ledger import lightning_corrections
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.ledger.target import find_network
from prunerecover.display.summary import call_text


def _is_same(value: object, default: object) -> bool:
    """Whether an argument, in its stored form, is its default: lists are stored as tuples."""
    if isinstance(value, Path):
        return str(value) == default
    is_empty = isinstance(value, tuple) and not value and not default
    return value is default or is_empty or (type(value) is type(default) and value == default)


class LedgerCallback(pl.Callback):
    """Base class: installs the ledger before a checkpoint is read, and orders optimizers before their state is loaded.

    Attributes:
        target: Path of the network inside the LightningModule; None: see `network_path`.
        prunes: Whether the callback removes units.
        adapts: Whether the callback injects adapters.
    """

    target: str | None = None
    prunes: ClassVar[bool] = False
    adapts: ClassVar[bool] = False

    def __repr__(self) -> str:
        """Return the call that makes the callback, without arguments equal to their defaults."""
        return call_text(type(self).__name__, self._arguments())

    def _arguments(self, **more: Any) -> dict[str, Any]:
        """Return the arguments that differ from the defaults, by name, with their present values.

        Args:
            more: Arguments stored elsewhere.
        """
        held = vars(self) | more
        for part in ("config", "settings", "recovery"):
            held = (vars(getattr(self, part)) if hasattr(self, part) else {}) | held
        parameters = inspect.signature(type(self)).parameters
        given = {name: held[name] for name in parameters if name in held}
        return {name: value for name, value in given.items() if not _is_same(value, parameters[name].default)}

    def network_path(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> str:
        """Return the callback's target, else the common target of all pruning callbacks, else the only network."""
        pruning = (c for c in trainer.callbacks if isinstance(c, LedgerCallback) and c.prunes)  # type: ignore[attr-defined]
        named = {callback.target for callback in pruning}
        shared = named.pop() if len(named) == 1 else None
        return find_network(pl_module, self.target if self.target is not None else shared)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Install the ledger before any checkpoint is read."""
        Ledger.of(pl_module).from_checkpoint = None
        lightning_corrections.keep_adapters_precise(trainer)
        lightning_corrections.make_leaves_quietly()

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Resume from the ledger of a checkpoint, if a checkpoint was read."""
        Ledger.of(pl_module).resume(trainer, pl_module)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Make a resumed fit continue from any file as the interrupted fit would have; see `lightning_corrections`."""
        if isinstance(trainer, pl.Trainer):
            lightning_corrections.begin_next_epoch(trainer)
            lightning_corrections.load_loader_states(trainer)
            lightning_corrections.pass_over_validation(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the random numbers of training, whatever was drawn since the last step."""
        Ledger.of(pl_module).continue_random_state()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Allow random draws; note that the fit trains."""
        ledger = Ledger.of(pl_module)
        ledger.training_random_state, ledger.has_trained = None, True

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the random state: a fit resumed from a file written now skips the next validation."""
        Ledger.of(pl_module).note_random_state()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the random numbers of training."""
        Ledger.of(pl_module).continue_random_state()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Detach from the fit."""
        self.detach()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Detach from the fit, since a checkpoint may be written now."""
        self.detach()

    def detach(self) -> None:
        """Leave the training step and the optimizers as they were."""

    def before_surgery(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str) -> None:
        """Called on every rank before the network at `target` changes.

        Args:
            trainer: Trainer in a fit.
            pl_module: LightningModule of the network.
            target: Path of the network in the module.
        """
