"""RoutedLoRARecover: recover a routed language model by one set of low-rank adapters for all its sets of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn

from prunerecover.callbacks.arguments import check_distillation
from prunerecover.callbacks.distill_recover import DistillRecover
from prunerecover.callbacks.distillation.student import Student, WrappedMethod
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.lora_recover import LoRARecover
from prunerecover.callbacks.pruning import PruneCallback
from prunerecover.callbacks.surgery.artifacts import artifact_folder, place_at_end, run_of
from prunerecover.checkpoint.ledger_record import ScheduleStart
from prunerecover.families.transformers_layers import is_transformers_model
from prunerecover.former import renamed
from prunerecover.model.batches import ModelInputs, logits_of
from prunerecover.model.copies import meta_copy
from prunerecover.model.paths import get_module, unwrap
from prunerecover.recovery.lora import merge_adapters
from prunerecover.recovery.shared_lora import WithoutUnits, self_distillation_loss, set_of_step, teacher_logits
from prunerecover.routing.plan_set import PlanSet
from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.routed_folder import INSIDE, write_routed
from prunerecover.surgery.apply_edits import check_source


class RoutedLoRARecover(LoRARecover):
    """Train one set of low-rank adapters for all sets of blocks of a routed language model.

    Each training step skips the blocks of one set (the same on every rank; in turn, in a random order of each round)
    and trains the adapters of the remaining blocks; validation and tests run the whole model. The loss becomes (1 -
    w) * loss + w * T^2 KL(teacher || student). The teacher is the same network with all blocks and without
    adapters: there is no second copy. All other parameters are frozen, and the teacher never changes. Adapters join
    optimizers, checkpoints and resumed runs as with `LoRARecover`.

    After the fit, the adapters are merged into a copy of the dense weights, saved with the sets in `routed/` beside the
    checkpoints; `load_routed` opens the folder. A router depends on the weights: train the router after the recovery.

    Args:
        sets: Sets of blocks, or the path of a file of sets, read when a fit starts.
        rank: Rank of the adapters.
        alpha: Numerator of the adapters' scale alpha / rank; None: 2 * rank.
        dropout: Share of an adapter's inputs set to zero in training.
        target_modules: Modules to adapt: shell patterns of paths or of path ends, e.g. "q_proj". None: every linear of
            the blocks. A head with a weight of its own may be named, too: "lm_head".
        teacher_weight: Weight w of the teacher, 0 to 1.
        temperature: Temperature T, a divisor of the logits of teacher and student.
        start: First epoch in which adapters train.
        target: Path of the network inside the LightningModule; default: the only network.
        seed: Seed of the adapters' initial values and of the order of the sets.
        distill: Former name of `teacher_weight`.

    Raises:
        ValueError: If an argument is out of range.
        TypeError: If an argument has the wrong type.
    """

    def __init__(
        self,
        sets: PlanSet | str | Path,
        rank: int = 16,
        alpha: float | None = None,
        dropout: float = 0.0,
        target_modules: Sequence[str] | None = None,
        teacher_weight: float = 0.5,
        temperature: float = 1.0,
        start: int = 0,
        target: str | None = None,
        seed: int = 0,
        distill: float | None = None,
    ) -> None:
        super().__init__(
            rank, alpha, dropout, target_modules, modules_to_save=(), start=start, target=target, seed=seed
        )
        self._given = sets
        if not isinstance(sets, PlanSet | str | Path):
            raise TypeError(f"Expected argument sets to be a PlanSet or the path of its file, but got {sets!r:.60}.")
        teacher_weight = renamed("RoutedLoRARecover(distill=)", distill, teacher_weight)
        check_distillation(teacher_weight, temperature)
        self.teacher_weight, self.temperature = teacher_weight, temperature
        self._step: WrappedMethod | None = None
        self._student: Student | None = None
        self._running: WithoutUnits | None = None

    def _arguments(self, **more: Any) -> dict[str, Any]:
        return super()._arguments(sets=self._given, **more)

    @cached_property
    def sets(self) -> PlanSet:
        """Sets of blocks; a file is read when a fit starts."""
        return self._given if isinstance(self._given, PlanSet) else PlanSet.load(self._given)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Install the ledger; let DDP expect blocks without gradients in a step.

        Raises:
            ValueError: With a strategy that shards the model or assumes equal steps (`static_graph`).
        """
        super().setup(trainer, pl_module, stage)
        if isinstance(trainer.strategy, DDPStrategy):
            if trainer.strategy._ddp_kwargs.get("static_graph"):
                raise ValueError(
                    "Expected DDP without static_graph=True, as each step leaves out other blocks. Remove it: "
                    "RoutedLoRARecover has unused parameters found by itself."
                )
            trainer.strategy._ddp_kwargs["find_unused_parameters"] = True

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Resume from the ledger of a checkpoint; refuse sets of another model, and pruning or distilling callbacks.

        Raises:
            FileNotFoundError: If the file of the sets is missing.
            ValueError: If the file holds no sets, or the sets do not fit the model, or another callback prunes or
                distills.
        """
        super().on_fit_start(trainer, pl_module)
        others: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        beside = [type(c).__name__ for c in others if isinstance(c, PruneCallback | DistillRecover)]
        if beside:
            raise ValueError(
                f"Expected no {beside[0]} beside RoutedLoRARecover, which takes blocks out by its sets and distills "
                "from the whole model. Prune before, in a fit of its own, or recover one set by LoRARecover."
            )
        ledger, target = Ledger.of(pl_module), self.network_path(trainer, pl_module)
        network = unwrap(get_module(pl_module, target))
        if not is_transformers_model(network) or ledger.plans.get(target):
            found = "a pruned one" if is_transformers_model(network) else f"a {type(network).__name__}"
            raise ValueError(
                f"Expected a language model of transformers as it was loaded at '{target}', but got {found}. Save it "
                "(save_pruned), load it and plan sets for it."
            )
        plain = meta_copy(network)
        if target in ledger.adapters:
            merge_adapters(plain, ledger.adapters[target], structure_only=True)
        for plan in self.sets.plans:
            if plan.edits:
                check_source(plain, plan)
        self._begin(ledger)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Attach to the training step."""
        super().on_train_start(trainer, pl_module)
        target = self.network_path(trainer, pl_module)
        network = unwrap(get_module(pl_module, target))

        def step(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if target not in Ledger.of(pl_module).adapters:  # an epoch before `start`
                self._running = None
                return original(*args, **kwargs)
            number = set_of_step(trainer.global_step, len(self.sets.plans), self.seed)
            self._running = WithoutUnits(network, self.sets.plans[number].edits)
            with self._running:
                return original(*args, **kwargs)

        def add_term(module: pl.LightningModule, loss: Tensor, inputs: ModelInputs, output: Any) -> Tensor:
            return loss if self._running is None else self._with_teacher(module, network, loss, inputs, output)

        self._step = WrappedMethod(pl_module, "training_step", step)
        self._student = Student(pl_module, network, add_term, lambda: None) if self.teacher_weight else None

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the recovered weights and the sets as `routed/` beside the checkpoints."""
        folder, target = artifact_folder(trainer), self.network_path(trainer, pl_module)
        if folder is not None and trainer.is_global_zero:
            ledger = Ledger.of(pl_module)
            run = run_of(ledger, target)
            place = place_at_end(pl_module, folder / "routed", run, "routed model")
            if place is not None:
                network: nn.Module = ledger.plain_copy(pl_module, target).eval()
                write_routed(RoutedCausalLM(network, self.sets), place, INSIDE, run)

    def _begin(self, ledger: Ledger) -> None:
        """Note the arguments, or compare them with the arguments of the resumed run."""
        key = f"{type(self).__name__}.0"
        asked = {
            "blocks": [sorted(blocks) for blocks in self.sets.blocks],
            "distill": self.teacher_weight,
            "temperature": self.temperature,
            "seed": self.seed,
        }
        if ledger.from_checkpoint and key in ledger.begun and ledger.begun[key].asked != asked:
            raise ValueError(
                f"Expected {type(self).__name__} with the sets and arguments of the run that is resumed "
                f"({ledger.begun[key].asked}), but got {asked}. Resume with the same ones, or start a new fit from the "
                "weights."
            )
        ledger.begun[key] = ScheduleStart(asked=asked)

    def _with_teacher(
        self, module: pl.LightningModule, network: nn.Module, loss: Tensor, inputs: ModelInputs, output: Any
    ) -> Tensor:
        assert self._running is not None
        with self._running.paused():
            teacher = teacher_logits(network, inputs)
        term = self_distillation_loss(logits_of(output), teacher, inputs, self.temperature)
        module.log("distillation_loss", term.detach(), batch_size=inputs.n_samples)
        return (1 - self.teacher_weight) * loss + self.teacher_weight * term

    def detach(self) -> None:
        """Detach from the training step."""
        for attached in (self._student, self._step):
            if attached is not None:
                attached.detach()
        self._student = self._step = self._running = None
