"""DistillRecover: recover a pruned network by soft distillation (Hinton 2015, arXiv 1503.02531) from the dense one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from prunerecover.callbacks.arguments import check_distillation
from prunerecover.callbacks.calibration.capture import capture_inputs
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.distillation.cached_teacher import AnswerFolders, CachedTeacher
from prunerecover.callbacks.distillation.features import FeatureMatcher
from prunerecover.callbacks.distillation.student import Student
from prunerecover.callbacks.distillation.teacher import copy_dense, freeze, load_teacher, open_teacher, save_teacher
from prunerecover.callbacks.ledger.callback import LedgerCallback
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.former import renamed
from prunerecover.model.arguments import check_flag
from prunerecover.model.batches import ModelInputs, call, holds_hidden_states, predictions_of, without_padding
from prunerecover.model.evaluation import evaluating
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.plan import Plan
from prunerecover.recovery.dense_reference import with_own_statistics
from prunerecover.recovery.distillation import distillation_loss, feature_loss

SAMPLES = 256  # to see whether BatchNorm statistics of the teacher lag behind its weights


class DistillRecover(LedgerCallback):
    """Add a term of distillation from the dense network to the loss of any LightningModule.

    The loss becomes (1 - w) * loss + w * T^2 KL(teacher || student). For a backbone without a head, the hidden
    states are matched instead (mean squared error relative to the teacher's). The module's own training step stays
    unchanged: a hook reads inputs and outputs of the network. Under manual optimization, the term is added in
    `manual_backward`.

    Args:
        teacher: "dense" (the network right before its first surgery, the teacher from then on), or the path of a saved
            network or a module, the teacher from the start.
        teacher_weight: Weight w of the teacher, 0 to 1.
        temperature: Temperature T, a divisor of the logits of teacher and student.
        features: Whether hidden states after each pruned block are matched, too (mean squared error relative to the
            teacher's).
        target: Path of the network inside the LightningModule; default: the target of the pruning callbacks, or the
            only network.
        cache: Whether predictions of the teacher are kept on disk, so that the teacher runs once per sample: for data
            that stay the same in every epoch. The files lie beside the checkpoints, ready for a resumed fit, else in a
            temporary folder. Augmented samples never repeat: from the second epoch on, a warning says so, and the
            teacher runs as without a cache.
        alpha: Former name of `teacher_weight`.

    Raises:
        ValueError: If teacher_weight or temperature is out of range, or features are to be cached.
        TypeError: If teacher_weight or temperature is no number, or a flag no bool.
    """

    def __init__(
        self,
        teacher: str | Path | nn.Module = "dense",
        teacher_weight: float = 0.5,
        temperature: float = 2.0,
        features: bool = False,
        target: str | None = None,
        cache: bool = False,
        alpha: float | None = None,
    ) -> None:
        teacher_weight = renamed("DistillRecover(alpha=)", alpha, teacher_weight)
        check_distillation(teacher_weight, temperature)
        check_flag("features", features)
        check_flag("cache", cache)
        if cache and features:
            raise ValueError(
                "Expected cache=True for a teacher's answers alone, but got features=True, too: its hidden states "
                "after every block take many times as much. Leave one of them out."
            )
        self.teacher, self.teacher_weight, self.temperature = teacher, teacher_weight, temperature
        self.features, self.target, self.cache = features, target, cache
        self._network: nn.Module | None = teacher if isinstance(teacher, nn.Module) else None
        self._path = ""
        self._has_added = False
        self._student: Student | None = None
        self._matcher: FeatureMatcher | None = None
        self._matched_plan: Plan | None = None
        self._folders: AnswerFolders | None = None
        self._cached: CachedTeacher | None = None

    def before_surgery(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str) -> None:
        """Keep the dense network as the teacher, in memory and in a file.

        Args:
            trainer: Trainer whose checkpoint folder gets the file; without checkpoints, no file is written.
            pl_module: LightningModule of the network.
            target: Path of the network about to change; ignored unless equal to the path of the student.
        """
        ledger = Ledger.of(pl_module)
        mine = self.network_path(trainer, pl_module)
        if self.teacher == "dense" and target == mine and self._network is None and target not in ledger.plans:
            statistics = Surgery(trainer, pl_module, target, SAMPLES).statistics
            self._network = freeze(with_own_statistics(copy_dense(pl_module, target), statistics)).to(pl_module.device)
            record = save_teacher(trainer, self._network)
            if record is not None:
                ledger.teachers[target] = record

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Load the teacher of a resumed run, and attach to the training step."""
        super().on_train_start(trainer, pl_module)
        ledger, target = Ledger.of(pl_module), self.network_path(trainer, pl_module)
        if self._network is None and self.teacher != "dense":
            assert not isinstance(self.teacher, nn.Module)
            self._network = open_teacher(pl_module, target, self.teacher)
        elif self._network is None and target in ledger.plans:
            if target not in ledger.teachers:
                raise RuntimeError(
                    "Expected a dense teacher from before the surgery, but none was saved: the model was pruned "
                    "without DistillRecover, or by a Trainer without checkpoints. Pass DistillRecover(teacher=path)."
                )
            self._network = load_teacher(trainer, pl_module, target, ledger.teachers[target])
        elif self._network is None and not any(getattr(c, "prunes", False) for c in trainer.callbacks):  # type: ignore[attr-defined]
            rank_zero_warn(
                "DistillRecover() learns from the network before its surgery in a fit, but no callback here prunes and "
                "none did before: nothing is distilled. Pass DistillRecover(teacher=...), the dense network or its "
                "path."
            )
        if self._network is not None:
            self._network.to(pl_module.device).eval().requires_grad_(False)
            if self.teacher != "dense":
                self._check_answers(trainer, pl_module, target)
        self._path, self._has_added = target, False
        if self.cache:
            self._folders = AnswerFolders(trainer, ledger)
        self._student = Student(pl_module, unwrap(get_module(pl_module, target)), self._add_term, self._forget)
        if self.features:  # a surgery before the first batch may be scored by the training step
            self._update_matcher(pl_module)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Forget calls of the network outside training steps; move the feature hooks after a surgery."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self.features:
            self._update_matcher(pl_module)
        if self._student is not None:
            self._student.begin_step()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Warn about a teacher used in no step, or a cache without a single hit."""
        if self._cached is not None:
            self._cached.end_epoch()
        if self._network is not None and not self._has_added:
            rank_zero_warn(
                f"Expected {type(pl_module).__name__}.training_step to call the network at '{self._path}' (itself, not "
                "its forward or parts of it) and, under manual optimization, self.manual_backward; it did not, so "
                "nothing is distilled."
            )

    def _check_answers(self, trainer: pl.Trainer, pl_module: pl.LightningModule, target: str) -> None:
        """Raise ValueError before any surgery if predictions of teacher and student differ in shape."""
        assert self._network is not None
        inputs = capture_inputs(trainer, pl_module, target, 2, seed=0)[0]
        student = unwrap(get_module(pl_module, target))
        with evaluating(student), torch.no_grad():
            distillation_loss(predictions_of(call(student, inputs)), predictions_of(call(self._network, inputs)))

    def detach(self) -> None:
        """Detach from the training step."""
        if self._student is not None:
            self._student.detach()
        if self._matcher is not None:
            self._matcher.detach()
        if self._folders is not None:
            self._folders.close()
        self._student = self._matcher = self._matched_plan = self._folders = self._cached = None
        if not isinstance(self.teacher, nn.Module):
            self._network = None

    def _forget(self) -> None:
        """Forget hidden states from outside training steps."""
        if self._matcher is not None:
            self._matcher.clear()

    def _add_term(self, module: pl.LightningModule, loss: Tensor, inputs: ModelInputs, output: Any) -> Tensor:
        """Return the loss with the teacher's term; the plain loss while no teacher is loaded."""
        if self._network is None:
            return loss
        self._has_added = True
        with torch.no_grad():
            wanted = self._answers(self._network, inputs)
        found, wanted = (without_padding(answers, inputs) for answers in (predictions_of(output), wanted))
        if holds_hidden_states(self._network, output):
            term = feature_loss(found, wanted)
        else:
            term = distillation_loss(found, wanted, self.temperature)
        if self._matcher is not None:
            term = term + self._matcher.loss()
        module.log("distillation_loss", term.detach(), batch_size=inputs.n_samples)
        return (1 - self.teacher_weight) * loss + self.teacher_weight * term

    def _answers(self, network: nn.Module, inputs: ModelInputs) -> Tensor:
        """Return the teacher's predictions, from the cache if there is a cache."""
        if self._folders is None:
            return predictions_of(call(network, inputs))
        if self._cached is None:
            self._cached = CachedTeacher(network, *self._folders.paths)
        return self._cached(inputs)

    def _update_matcher(self, module: pl.LightningModule) -> None:
        """Put the feature hooks on the blocks of the present structure."""
        plan = Ledger.of(module).plans.get(self._path)
        if self._network is None or plan is None or plan is self._matched_plan:
            return
        if self._matcher is not None:
            self._matcher.detach()
        self._matcher = FeatureMatcher(unwrap(get_module(module, self._path)), self._network, plan)
        self._matched_plan = plan
