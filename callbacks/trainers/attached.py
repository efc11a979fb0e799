"""Class of a transformers Trainer with pruning callbacks: methods extended by work before or after.

A Trainer reads weights before calling any callback, and optimizer states before training begins. So methods are
extended, beside the events.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer

from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.trainers.fit import Fit
from prunerecover.callbacks.trainers.module import MicroBatch
from prunerecover.checkpoint.ledger_record import KEY
from prunerecover.checkpoint.trainer_folder import read_beside, write_beside

CALLBACKS = "callbacks"  # as in checkpoints of Lightning


class AttachedTrainer(Trainer):  # type: ignore[misc]
    """Subclass mixed in before the Trainer's own class.

    Attributes:
        pruning: Fit, as seen by the callbacks.
    """

    pruning: Fit

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train; callbacks detach from the model after an error."""
        self.pruning.ckpt_path = None
        self.pruning.call("setup", "fit")
        try:
            return super().train(*args, **kwargs)
        except BaseException as error:
            self.pruning.call("on_exception", error)
            raise

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None, **more: Any
    ) -> Any:
        """Return the loss, in training with the terms of the callbacks."""
        if return_outputs or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch, **more)
        parts = self.current_gradient_accumulation_steps if self._is_scaled(num_items_in_batch) else 1
        loss = self.pruning.module.training_step(MicroBatch(inputs, model, num_items_in_batch, parts))
        return loss / parts if parts > 1 else loss

    def own_loss(self, model: nn.Module, inputs: Any, items: Any) -> Tensor:
        """Return the loss computed by the Trainer's own class.

        Args:
            model: Model.
            inputs: Batch.
            items: Number of items in the optimizer step; None: not counted.
        """
        return super().compute_loss(model, inputs, num_items_in_batch=items)  # type: ignore[no-any-return]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log; values noted by callbacks are added to the entry with the loss."""
        super().log({**logs, **self.pruning.module.take_noted()} if "loss" in logs else logs, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, with the record of the surgery beside the weights."""
        if self.args.should_save:
            held: dict[str, Any] = {KEY: Ledger.of(self.pruning.module).present(self.pruning.module).to_dict()}
            held[CALLBACKS] = {callback.state_key: callback.state_dict() for callback in self.pruning.callbacks}
            write_beside(Path(output_dir or self.args.output_dir), self.model, held)
        with warnings.catch_warnings(), _names_as_they_are(self.model):
            if _internal_call:  # checkpoints are for the Trainer and load_pruned, both readers of the record beside
                warnings.filterwarnings("ignore", message="from_pretrained will not make")
            super().save_model(output_dir, _internal_call=_internal_call)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        held = self._give_structure_of(resume_from_checkpoint)
        self.pruning.ckpt_path = resume_from_checkpoint
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        for callback in self.pruning.callbacks:
            state = held.get(CALLBACKS, {}).get(callback.state_key)
            if state:
                callback.load_state_dict(state)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            Ledger.of(self.pruning.module).resume(self.pruning, self.pruning.module)  # type: ignore[arg-type]
        super()._load_optimizer_and_scheduler(checkpoint)

    def _load_best_model(self) -> None:
        self._give_structure_of(self.state.best_model_checkpoint)
        super()._load_best_model()

    def _give_structure_of(self, folder: str) -> dict[str, Any]:
        """Give the model the structure recorded in a folder, and return the record beside its weights."""
        held = read_beside(Path(folder))
        self.pruning.module.on_load_checkpoint(held)
        return held

    def _is_scaled(self, items: Any) -> bool:
        """Whether the loss belongs to the whole optimizer step, so that the Trainer does not divide the loss."""
        said = getattr(self, "loss_is_scaled_for_ga", None)
        if said is not None:
            return bool(said)
        return (self.model_accepts_loss_kwargs and items is not None) or self.compute_loss_func is not None


@contextmanager
def _names_as_they_are(model: Any) -> Iterator[None]:
    """Save tensors under the model's own names.

    By default, `save_pretrained` writes names of older formats, and a resumed Trainer would find no tensor by name: a
    ViT would continue from random layers. `from_pretrained` reads both.
    """
    if not isinstance(model, PreTrainedModel):
        yield
        return
    own = vars(model).get("save_pretrained")
    vars(model)["save_pretrained"] = partial(model.save_pretrained, save_original_format=False)
    try:
        yield
    finally:
        del vars(model)["save_pretrained"]
        if own is not None:
            vars(model)["save_pretrained"] = own
