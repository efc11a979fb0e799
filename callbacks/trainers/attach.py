"""Attachment of pruning callbacks to a Trainer of transformers, or to a subclass, e.g. TRL's SFTTrainer."""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback

from prunerecover.callbacks.distill_recover import DistillRecover
from prunerecover.callbacks.ledger.callback import LedgerCallback
from prunerecover.callbacks.lora_recover import LoRARecover
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.callbacks.recovery_schedule import RecoverySchedule
from prunerecover.callbacks.trainers.attached import AttachedTrainer
from prunerecover.callbacks.trainers.fit import Fit
from prunerecover.model.paths import is_of_peft
from prunerecover.quality import Quality


class Events(TrainerCallback):  # type: ignore[misc]
    """Callback of transformers that calls the hooks of attached callbacks.

    Args:
        fit: Fit of the Trainer.
    """

    def __init__(self, fit: Fit) -> None:
        self.fit = fit

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin: the model is wrapped, the optimizer made, and a checkpoint read."""
        self.fit.current_epoch = int(state.epoch or 0)
        self.fit.call("on_fit_start")
        self.fit.call("on_train_start")
        self.fit.current_epoch -= 1  # the first epoch is about to begin, too

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Do the surgeries due now."""
        self.fit.current_epoch += 1
        self.fit.call("on_train_epoch_start")

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin a step; for a schedule in steps, a step begins as an epoch does."""
        self.fit.call("on_train_epoch_start", callbacks=self.fit.by_step)
        self.fit.call("on_train_batch_start", None, self.fit.batch_index)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """End an epoch."""
        self.fit.call("on_train_epoch_end")

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Detach, and write a merged copy."""
        self.fit.call("on_train_end")
        self.fit.call("on_fit_end")


USABLE = (PruneCallback, DistillRecover, LoRARecover, RecoverySchedule)


def attach(trainer: Any, *callbacks: LedgerCallback) -> None:
    """Let callbacks prune and recover the model of a transformers Trainer during training.

    The callbacks are the Lightning callbacks, with the same arguments: `attach(trainer, Prune(Budget(macs=0.3),
    schedule=1), DistillRecover())`. A schedule may also count steps, `schedule={"start": 500, "by": "step"}`.
    Checkpoints record the surgery, `trainer.train(resume_from_checkpoint=True)` continues from a checkpoint, and
    `load_pruned` opens checkpoints; at the end, `pruned/` in the output folder holds the merged model. A `target`
    begins with "model", as in `trainer.model`.

    Args:
        trainer: Trainer before its training.
        callbacks: Callbacks among Prune, DepthPrune, WidthPrune, DistillRecover, LoRARecover and RecoverySchedule.

    Raises:
        TypeError: If the trainer or a callback is of another kind.
        ValueError: If the trainer shards or replicates its model, creates models itself, or trains adapters of peft.
        RuntimeError: If callbacks were attached before.
    """
    _check_trainer(trainer)
    _check_callbacks(callbacks)
    own = type(trainer)
    trainer.__class__ = type(own.__name__, (AttachedTrainer, own), {"__module__": own.__module__})
    trainer.pruning = Fit(trainer, callbacks)
    trainer.add_callback(Events(trainer.pruning))


def _check_trainer(trainer: Any) -> None:
    if not isinstance(trainer, Trainer):
        raise TypeError(
            f"Expected a Trainer of transformers, but got {type(trainer).__name__}. In a Trainer of Lightning pass "
            "Trainer(callbacks=[...])."
        )
    if isinstance(trainer, AttachedTrainer):
        raise RuntimeError(
            "Expected a Trainer without callbacks of prunerecover, but some were attached before. Attach all at once: "
            "attach(trainer, Prune(...), DistillRecover())."
        )
    if trainer.model_init is not None:
        raise ValueError(
            "Expected a Trainer with a model, but got model_init, which makes another one whenever training begins. "
            "Pass Trainer(model=...)."
        )
    if any(map(is_of_peft, trainer.model.modules())):
        raise ValueError(
            "Expected a model without adapters of peft, but got some, whose checkpoints hold no other weights. Leave "
            "peft_config out, or merge them (merge_and_unload), and attach LoRARecover."
        )
    sharded = (trainer.is_fsdp_enabled, trainer.is_deepspeed_enabled)
    if any(sharded) or getattr(trainer, "is_distributed_loading_by_transformers", False):
        raise ValueError(
            "Expected a Trainer that keeps the model whole, but got one that shards it (FSDP, DeepSpeed, tensor "
            "parallel). Use one device or torchrun (DDP), or prune beforehand: apply_plan, then Trainer."
        )
    if trainer.args.n_gpu > 1:
        raise ValueError(
            f"Expected one device for each process, but got {trainer.args.n_gpu} GPUs in one (DataParallel). Start it "
            "with torchrun, or show it one GPU (CUDA_VISIBLE_DEVICES=0)."
        )


def _check_callbacks(callbacks: tuple[object, ...]) -> None:
    odd = [callback for callback in callbacks if not isinstance(callback, USABLE)]
    if odd or not callbacks:
        raise TypeError(
            "Expected callbacks among Prune, DepthPrune, WidthPrune, DistillRecover, LoRARecover and RecoverySchedule, "
            f"but got {type(odd[0]).__name__ if odd else 'none'}. Those of transformers go to Trainer(callbacks=[...])."
        )
    if any(isinstance(callback, PruneCallback) and isinstance(callback.budget, Quality) for callback in callbacks):
        raise ValueError(
            "Expected pruning callbacks with a budget, but got Quality, whose metric is read in validations of "
            "Lightning. Name a budget, or train in a Trainer of Lightning."
        )
    stepped = [c for c in callbacks if isinstance(c, PruneCallback) and c.schedule.by == "step"]
    if stepped and any(isinstance(callback, RecoverySchedule) for callback in callbacks):
        raise ValueError(
            "Expected schedules by epochs beside RecoverySchedule, which counts epochs, but got "
            f"{stepped[0].schedule}. Leave RecoverySchedule out, or by='step'."
        )
