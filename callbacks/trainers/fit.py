"""Fit of a transformers Trainer, under the names of Lightning's Trainer that callbacks read.

Callbacks, planning, surgery and ledger are the same in both Trainers. The attributes of a Lightning Trainer that they
read are defined here: a test compares the names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from prunerecover.callbacks.ledger.callback import LedgerCallback
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.callbacks.trainers.follow import follow, forget_best
from prunerecover.callbacks.trainers.module import TrainedModel
from prunerecover.store.ranks import from_first_rank


def _number(path: str, doc: str) -> Any:
    """Return a property: a whole number of the Trainer, by its path."""
    return property(lambda fit: int(attrgetter(path)(fit.trainer)), doc=doc)


class Fit:
    """Attributes of a Trainer read by callbacks, and the calls of their hooks.

    Args:
        trainer: Trainer of transformers.
        callbacks: Attached callbacks.

    Attributes:
        module: LightningModule with the model, as its child "model".
        current_epoch: Epoch, counted from 0.
        ckpt_path: Folder of the resumed checkpoint.
    """

    fast_dev_run = False
    gradient_clip_algorithm = "norm"
    should_stop = sanity_checking = False
    global_step: int = _number("state.global_step", "Optimizer steps so far.")
    max_epochs: int = _number("state.num_train_epochs", "Epochs in all.")
    max_steps: int = _number("state.max_steps", "Optimizer steps in all.")
    accumulate_grad_batches: int = _number("args.gradient_accumulation_steps", "Batches of one optimizer step.")
    world_size: int = _number("args.world_size", "Number of processes.")
    global_rank: int = _number("args.process_index", "Number of this process.")

    def __init__(self, trainer: Any, callbacks: Sequence[LedgerCallback]) -> None:
        self.trainer, self.module = trainer, TrainedModel(trainer)
        self.module._trainer = self  # type: ignore[assignment]
        # Surgery comes first within a hook, so that recovery callbacks see the pruned network.
        self.callbacks = sorted(callbacks, key=lambda callback: not callback.prunes)
        self.strategy = _Strategy(trainer)
        self.precision_plugin = self.strategy.precision_plugin
        self.state = SimpleNamespace(fn="fit")
        self.current_epoch = 0
        self.ckpt_path: str | None = None
        self.loggers = [self]

    def call(self, hook: str, *arguments: Any, callbacks: Iterable[LedgerCallback] | None = None) -> None:
        """Call a hook of callbacks; afterwards, wrappers and the best checkpoint follow any surgery.

        Args:
            hook: Name of the hook.
            arguments: Arguments of the hook after the fit and the module.
            callbacks: Callbacks; None: all.
        """
        ledger = Ledger.of(self.module)
        before, surgeries = ledger.structure, len(ledger.events)
        for callback in self.callbacks if callbacks is None else callbacks:
            getattr(callback, hook)(self, self.module, *arguments)
        if ledger.structure != before:
            follow(self.trainer)
        if len(ledger.events) > surgeries:
            forget_best(self.trainer)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Log as a logger of Lightning does."""
        self.trainer.log(dict(metrics))

    @property
    def by_step(self) -> list[PruneCallback]:
        """Callbacks with a schedule in steps."""
        return [c for c in self.callbacks if isinstance(c, PruneCallback) and c.schedule.by == "step"]

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizer, without accelerate's wrapper."""
        optimizer = self.trainer.optimizer
        return [] if optimizer is None else [getattr(optimizer, "optimizer", optimizer)]

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """The scheduler."""
        scheduler = self.trainer.lr_scheduler
        return [] if scheduler is None else [SimpleNamespace(scheduler=getattr(scheduler, "scheduler", scheduler))]

    @property
    def checkpoint_callback(self) -> ModelCheckpoint | None:
        """Callback with the folder of the checkpoints; None: no checkpoints are written."""
        args = self.trainer.args
        return None if str(args.save_strategy.value) == "no" else ModelCheckpoint(dirpath=args.output_dir)

    @property
    def fit_loop(self) -> Any:
        """Loop with the training data."""
        loader = self.trainer.callback_handler.train_dataloader
        combined = None if loader is None else CombinedLoader(plain_loader(loader, self.trainer), "max_size_cycle")
        return SimpleNamespace(_combined_loader=combined)

    @property
    def progress_bar_callback(self) -> Any:
        """The Trainer if there is a progress bar, else None."""
        return None if self.trainer.args.disable_tqdm else self.trainer

    @property
    def num_training_batches(self) -> float:
        """Number of batches in an epoch; infinite for data without a length."""
        try:
            return len(self.trainer.callback_handler.train_dataloader)
        except TypeError:
            return math.inf

    @property
    def batch_index(self) -> int:
        """Number of the next batch in the epoch."""
        if math.isinf(self.num_training_batches):
            return 0
        steps = math.ceil(self.num_training_batches / self.accumulate_grad_batches)
        return (self.global_step - self.current_epoch * steps) * self.accumulate_grad_batches

    @property
    def gradient_clip_val(self) -> float | None:
        """Norm to clip gradients to."""
        return self.trainer.args.max_grad_norm or None

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the first process."""
        return self.global_rank == 0


class _Strategy:
    """Devices, precision and processes of a Trainer, by Lightning's names."""

    launcher = None

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.precision_plugin = SimpleNamespace(
            train_step_context=lambda: trainer.compute_loss_context_manager(), convert_input=lambda inputs: inputs
        )

    def broadcast(self, value: Any) -> Any:
        """Return the first process's value."""
        return from_first_rank(value)

    def batch_to_device(self, batch: Any, dataloader_idx: int = 0) -> Any:
        """Return a batch in the form expected by the training step."""
        return self.trainer._prepare_inputs(batch)


def plain_loader(loader: Any, trainer: Any) -> Any:
    """Return a loader of the whole training set, the same in every process, whatever accelerate shards.

    A custom sampler is kept.

    Args:
        loader: Loader prepared by accelerate.
        trainer: Trainer of the loader.
    """
    if not isinstance(loader, DataLoader):
        return loader
    size, collate = trainer._train_batch_size, loader.collate_fn
    if isinstance(loader.dataset, IterableDataset):
        dataset = getattr(loader.dataset, "dataset", loader.dataset)
        return DataLoader(dataset if isinstance(dataset, IterableDataset) else loader.dataset, size, collate_fn=collate)
    sampler = _sampler_of(loader)
    shuffled = sampler is None or isinstance(sampler, RandomSampler | SequentialSampler)
    return DataLoader(
        loader.dataset,
        size,
        sampler=RandomSampler(loader.dataset) if shuffled else sampler,  # type: ignore[arg-type]
        collate_fn=collate,
        drop_last=trainer.args.dataloader_drop_last,
    )


def _sampler_of(loader: Any) -> Any:
    """Return the sampler under the wrappers of accelerate."""
    found = loader.batch_sampler
    while found is not None and type(found) is not BatchSampler and hasattr(found, "batch_sampler"):
        found = found.batch_sampler
    return getattr(found, "sampler", None)
