"""One ledger per LightningModule: a record of all surgery, kept in every checkpoint and replayed on load.

The ledger is an attribute of the module, with one pair of hooks on the instance: a user's own class needs no change.
The ledger survives pickling and deep copies (weight averaging copies the module with the ledger), and stays after the
fit, because checkpoints may be saved later. Loading a file first undoes the surgery of the live module and then replays
the surgery of the file: a file may be less pruned than the module.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn

from prunerecover.callbacks.ledger import optimizer_groups as optimizers
from prunerecover.callbacks.ledger import random_state
from prunerecover.callbacks.ledger.averaged_copies import averaged_copies
from prunerecover.checkpoint.ledger_record import (
    KEY,
    GroupPositions,
    LedgerRecord,
    QualityTrail,
    ScheduleStart,
    SurgeryEvent,
    TeacherFile,
)
from prunerecover.model.paths import get_module, unwrap
from prunerecover.model.settings import restore_use, use_of
from prunerecover.plan.edits import Edit
from prunerecover.plan.plan import Plan
from prunerecover.recovery.lora import Adapters, frozen_parameters, inject_adapters, merge_adapters
from prunerecover.surgery.apply_edits import Applied, apply_and_check, check_source, undo
from prunerecover.surgery.journal import Journal
from prunerecover.surgery.optimizer_update import update_optimizer

ATTRIBUTE = "_prunerecover_ledger"
HOOKS = ("on_save_checkpoint", "on_load_checkpoint")


@dataclass
class Ledger:
    """Record of the surgery on one LightningModule.

    Attributes:
        run: Identifier of the fit: a resumed fit keeps the identifier, and continues the files of the first.
        plans: All edits so far of each network, by its path.
        journals: Journals to undo the edits, by the same paths.
        events: Surgeries in order.
        begun: State at the beginning of each callback's schedule.
        quality: Steps of the callbacks that prune until a metric falls.
        teachers: Saved files of each network's dense teacher.
        adapters: Adapters injected on each network after all edits; merged before the next edit.
        places: Positions in the optimizers of the parameters frozen by adapters, by network and name.
        from_checkpoint: Whether the last file read held a ledger; None: no file was read.
        pending: Record of the last file read, until the fit starts: of optimizers and random states.
        training_random_state: Random state of this rank after a training step, until the next step begins.
        has_trained: Whether the present fit has begun a training step; between fits, whether the last fit had.
    """

    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    plans: dict[str, Plan] = field(default_factory=dict)
    journals: dict[str, Journal] = field(default_factory=dict)
    events: list[SurgeryEvent] = field(default_factory=list)
    begun: dict[str, ScheduleStart] = field(default_factory=dict)
    quality: dict[str, QualityTrail] = field(default_factory=dict)
    teachers: dict[str, TeacherFile] = field(default_factory=dict)
    adapters: dict[str, Adapters] = field(default_factory=dict)
    places: dict[str, GroupPositions] = field(default_factory=dict)
    from_checkpoint: bool | None = None
    pending: LedgerRecord = field(default_factory=LedgerRecord)
    training_random_state: dict[str, Any] | None = None
    has_trained: bool = False

    @classmethod
    def of(cls, module: pl.LightningModule) -> Ledger:
        """Return the ledger of a module; install a new ledger if there is none."""
        ledger = vars(module).get(ATTRIBUTE)
        if not isinstance(ledger, cls):
            ledger = cls()
            object.__setattr__(module, ATTRIBUTE, ledger)
            for hook in HOOKS:
                object.__setattr__(module, hook, _Hook(module, hook, vars(module).get(hook)))
        return ledger

    @property
    def is_dense(self) -> bool:
        """Whether no unit has been removed so far."""
        return not any(plan.edits for plan in self.plans.values())

    def apply(self, module: pl.LightningModule, target: str, plan: Plan, *, structure_only: bool = False) -> Applied:
        """Apply a plan, made for the network in its present state, and record the plan.

        Args:
            module: LightningModule of the ledger.
            target: Path of the network in the module.
            plan: Plan with fitted tensors.
            structure_only: Whether values of new modules are left to a checkpoint.

        Raises:
            ValueError: If the plan does not fit, or does not lead to the recorded result; the network stays unchanged.
        """
        composed = self.plans.get(target, Plan()) + plan
        applied = self._edit(module, target, plan, None if structure_only else plan.tensors)
        self.plans[target] = composed
        return applied

    def inject(self, module: pl.LightningModule, target: str, adapters: Adapters, seed: int = 0) -> Applied:
        """Inject adapters on the network at `target`, and record the adapters.

        Args:
            module: LightningModule of the network.
            target: Path of the network in the module.
            adapters: Adapters with their places.
            seed: Seed of the adapters' initial values.
        """
        applied = inject_adapters(get_module(module, target), adapters, seed)
        self.adapters[target] = adapters
        return applied

    def merge_adapters(self, module: pl.LightningModule, target: str, *, structure_only: bool = False) -> Applied:
        """Merge the adapters of the network at `target` into its weights; see `merge_adapters`.

        Args:
            module: LightningModule of the network.
            target: Path of the network in the module.
            structure_only: Whether adapters are removed without changing the weights.
        """
        applied = merge_adapters(get_module(module, target), self.adapters[target], structure_only=structure_only)
        del self.adapters[target]
        return applied

    def plain_copy(self, module: pl.LightningModule, target: str) -> nn.Module:
        """Return a copy of the network at `target` with merged adapters, of equal output."""
        network = copy.deepcopy(unwrap(get_module(module, target)))
        if target in self.adapters:
            merge_adapters(network, self.adapters[target])
        return network

    @property
    def structure(self) -> tuple[dict[str, tuple[Edit, ...]], dict[str, Adapters]]:
        """Structure of the networks, by path: all edits, and adapters."""
        return _edits(self.plans), dict(self.adapters)

    @property
    def removed_units(self) -> int:
        """Number of units removed so far, in all networks."""
        return sum(len(event.units) for event in self.events)

    def made_by(self, callback: str) -> list[SurgeryEvent]:
        """Return the surgeries of a callback since its schedule began."""
        own = [event for event in self.events if event.by == callback]
        return own[self.begun[callback].events :] if callback in self.begun else own

    def record(self, module: pl.LightningModule) -> LedgerRecord:
        """Return the full record for a checkpoint."""
        states = random_state.collect(self.training_random_state)
        return self.present(module).model_copy(update={"random_states": states})

    def present(self, module: pl.LightningModule) -> LedgerRecord:
        """Return the record without the random states, which all ranks have to collect together."""
        trainer = module._trainer
        return LedgerRecord(
            run=self.run,
            plans=dict(self.plans),
            events=tuple(self.events),
            begun=dict(self.begun),
            quality=dict(self.quality),
            teachers=dict(self.teachers),
            adapters=dict(self.adapters),
            places=dict(self.places),
            use={target: use_of(unwrap(get_module(module, target))) for target in self.plans | self.adapters},
            optimizers=optimizers.group_names(trainer.optimizers, module) if trainer is not None else [],
        )

    def restore(self, module: pl.LightningModule, record: LedgerRecord | None) -> None:
        """Give the module the structure of a checkpoint's weights; weights are loaded afterwards.

        Args:
            module: LightningModule of the ledger.
            record: Record of the file; None: a file without a record.

        Raises:
            ValueError: If the file belongs to another network.
        """
        self.from_checkpoint = record is not None
        record = record or LedgerRecord()
        self.go_back(module, record)
        self.begun, self.quality, self.teachers = dict(record.begun), dict(record.quality), dict(record.teachers)
        self.run = record.run or self.run
        self.pending = record

    def go_back(self, module: pl.LightningModule, record: LedgerRecord) -> None:
        """Give the module the structure, and the ledger the surgeries, of a record; weights are loaded afterwards.

        Args:
            module: LightningModule of the ledger.
            record: Record from `present`, of the same module or of a module with equal dense networks.
        """
        if self.structure != (_edits(record.plans), record.adapters):
            for target in list(self.adapters):
                self.merge_adapters(module, target, structure_only=True)
            if _edits(self.plans) != _edits(record.plans):
                self._replay(module, record.plans)
            for target, injected in record.adapters.items():
                self.inject(module, target, injected)
        for target, use in record.use.items():
            restore_use(unwrap(get_module(module, target)), use)
        self.plans, self.places, self.events = dict(record.plans), dict(record.places), list(record.events)

    def _replay(self, module: pl.LightningModule, plans: dict[str, Plan]) -> None:
        for target, journal in self.journals.items():
            undo(unwrap(get_module(module, target)), journal)
        self.plans = {}
        for target, plan in plans.items():
            if plan.edits:
                check_source(unwrap(get_module(module, target)), plan)
            self._edit(module, target, plan, None)

    def _edit(
        self, module: pl.LightningModule, target: str, plan: Plan, tensors: Mapping[str, Tensor] | None
    ) -> Applied:
        """Apply a plan, and record its journal; without tensors, only the structure is made."""
        network = unwrap(get_module(module, target))
        applied = apply_and_check(network, plan, tensors)
        applied.journal.to_cpu()
        self.journals.setdefault(target, Journal()).entries.extend(applied.journal.entries)
        return applied

    def note_random_state(self) -> None:
        """Note the random state of training, unless already noted."""
        if self.training_random_state is None:
            self.training_random_state = random_state.of_this_rank()

    def continue_random_state(self) -> None:
        """Undo random draws since the last training step: a run resumed from the step has not made them."""
        if self.training_random_state is not None:
            random_state.restore_this_rank(self.training_random_state)

    def restore_random_state(self) -> None:
        """Set the random states of the last file read."""
        if self.pending.random_states is not None:
            random_state.restore(self.pending.random_states)

    def resume(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """At the start of a fit: order optimizer groups as in the file, and set the random states.

        Random states were set when the file was read, too: a scheduler that asks for the number of steps draws the
        first batch in between, and the batch must not be drawn a second time.
        """
        if self.pending.optimizers is not None and trainer.optimizers:
            optimizers.rebind(trainer.optimizers, module, self.pending.optimizers)
        for target, adapters in self.adapters.items():  # new optimizers may hold all parameters, frozen ones included
            frozen = frozen_parameters(get_module(module, target), adapters)
            self.places[target] = self.places.get(target, {}) | optimizers.positions_of(trainer.optimizers, frozen)
            for optimizer in trainer.optimizers:
                update_optimizer(optimizer, Applied(removed=frozen))
        if trainer.fit_loop._combined_loader is None:
            self.restore_random_state()
        self.pending = LedgerRecord()
        self.training_random_state, self.has_trained = None, False


def _edits(plans: dict[str, Plan]) -> dict[str, tuple[Edit, ...]]:
    return {target: plan.edits for target, plan in plans.items() if plan.edits}


@dataclass
class _Hook:
    """LightningModule hook on the instance; a hook of the same name on the instance or the class runs, too."""

    module: pl.LightningModule
    name: str
    previous: Any

    def __call__(self, checkpoint: dict[str, Any]) -> None:
        ledger = Ledger.of(self.module)
        if self.name == "on_save_checkpoint":
            checkpoint[KEY] = ledger.record(self.module).to_dict()
        else:
            record = LedgerRecord.from_dict(checkpoint[KEY]) if checkpoint.get(KEY) else None
            for module in (self.module, *averaged_copies(self.module)):
                Ledger.of(module).restore(module, record)
            trainer = self.module._trainer
            if trainer is not None and trainer.state.fn == "fit":
                ledger.restore_random_state()
        if self.previous is not None:
            self.previous(checkpoint)
        else:
            getattr(type(self.module), self.name)(self.module, checkpoint)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return _Hook(memo.get(id(self.module), self.module), self.name, copy.deepcopy(self.previous, memo))
