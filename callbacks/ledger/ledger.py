"""One ledger per LightningModule: what all callbacks did, kept in every checkpoint and done again when one is read.

The ledger hangs on the module itself, with one pair of hooks on the instance, so a user's own class needs no change. It
survives pickling and deep copies (weight averaging copies the module with it), and stays after the fit, because
checkpoints may be saved later. Loading a file first takes back what the live module has and then replays what the file
has: a file may be less pruned than the module.
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
    """What was done to one LightningModule.

    Attributes:
        run: Which fit this is: those that resume it are the same one, and go on writing its files.
        plans: All edits so far of each network, by its path.
        journals: How to take them back, by the same paths.
        events: Surgeries in order.
        begun: What each callback found when its schedule began.
        quality: Steps of the callbacks that prune until a metric falls.
        teachers: Where the dense teacher of each network is, once it was saved.
        adapters: What is injected on each network after all its edits; merged before the next edit.
        places: Where optimizers held what those adapters froze, by network and name.
        from_checkpoint: Whether the last file read held a ledger; None: no file was read.
        pending: What the last file read says, until the fit starts: of optimizers and random states.
        training_random_state: Of this rank after a training step, until the next one begins.
        has_trained: Whether the present fit has begun a training step, or the last one had.
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
        """Return the ledger of a module, and install it if there is none yet."""
        ledger = vars(module).get(ATTRIBUTE)
        if not isinstance(ledger, cls):
            ledger = cls()
            object.__setattr__(module, ATTRIBUTE, ledger)
            for hook in HOOKS:
                object.__setattr__(module, hook, _Hook(module, hook, vars(module).get(hook)))
        return ledger

    @property
    def is_dense(self) -> bool:
        """Whether nothing was removed yet."""
        return not any(plan.edits for plan in self.plans.values())

    def apply(self, module: pl.LightningModule, target: str, plan: Plan, *, structure_only: bool = False) -> Applied:
        """Apply a plan, made for the network as it is now, and write it down.

        Args:
            module: The module this ledger belongs to.
            target: Path of the network in it.
            plan: With its fitted tensors.
            structure_only: Leave the values of what is put in to a checkpoint.

        Raises:
            ValueError: If the plan does not fit, or does not lead where it says; nothing is changed then.
        """
        composed = self.plans.get(target, Plan()) + plan
        applied = self._edit(module, target, plan, None if structure_only else plan.tensors)
        self.plans[target] = composed
        return applied

    def inject(self, module: pl.LightningModule, target: str, adapters: Adapters, seed: int = 0) -> Applied:
        """Inject adapters on the network at `target`, and write it down.

        Args:
            module: Holds the network.
            target: Path of the network in it.
            adapters: Which, and where.
            seed: Of their initial values.
        """
        applied = inject_adapters(get_module(module, target), adapters, seed)
        self.adapters[target] = adapters
        return applied

    def merge(self, module: pl.LightningModule, target: str, *, structure_only: bool = False) -> Applied:
        """Merge the adapters of the network at `target` into it; see `merge_adapters`.

        Args:
            module: Holds the network.
            target: Path of the network in it.
            structure_only: Take the adapters out and leave the weights as they are.
        """
        applied = merge_adapters(get_module(module, target), self.adapters[target], structure_only=structure_only)
        del self.adapters[target]
        return applied

    def plain_copy(self, module: pl.LightningModule, target: str) -> nn.Module:
        """Return a copy of the network at `target` without adapters, which computes the same."""
        network = copy.deepcopy(unwrap(get_module(module, target)))
        if target in self.adapters:
            merge_adapters(network, self.adapters[target])
        return network

    @property
    def structure(self) -> tuple[dict[str, tuple[Edit, ...]], dict[str, Adapters]]:
        """What the networks are made of, by path: all edits, and adapters."""
        return _edits(self.plans), dict(self.adapters)

    @property
    def removed_units(self) -> int:
        """How many units were removed so far, in all networks."""
        return sum(len(event.units) for event in self.events)

    def made_by(self, callback: str) -> list[SurgeryEvent]:
        """Return the surgeries that a callback has made since its schedule began."""
        own = [event for event in self.events if event.by == callback]
        return own[self.begun[callback].events :] if callback in self.begun else own

    def record(self, module: pl.LightningModule) -> LedgerRecord:
        """Return everything that a checkpoint must hold."""
        states = random_state.collect(self.training_random_state)
        return self.present(module).model_copy(update={"random_states": states})

    def present(self, module: pl.LightningModule) -> LedgerRecord:
        """Return everything but the random states, which all ranks have to collect together."""
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
        """Give the module the structure that a checkpoint's weights are for; weights are loaded afterwards.

        Args:
            module: The module this ledger belongs to.
            record: Of the file; None: it has none.

        Raises:
            ValueError: If the file is of another network.
        """
        self.from_checkpoint = record is not None
        record = record or LedgerRecord()
        self.go_back(module, record)
        self.begun, self.quality, self.teachers = dict(record.begun), dict(record.quality), dict(record.teachers)
        self.run = record.run or self.run
        self.pending = record

    def go_back(self, module: pl.LightningModule, record: LedgerRecord) -> None:
        """Give the module the structure, and this ledger the surgeries, of a record; weights are loaded afterwards.

        Args:
            module: The module this ledger belongs to.
            record: As of `present`, of this module or of one that had the same dense networks.
        """
        if self.structure != (_edits(record.plans), record.adapters):
            for target in list(self.adapters):
                self.merge(module, target, structure_only=True)
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
        """Apply a plan, and note how to take it back; without tensors, only the structure is made."""
        network = unwrap(get_module(module, target))
        applied = apply_and_check(network, plan, tensors)
        applied.journal.to_cpu()
        self.journals.setdefault(target, Journal()).entries.extend(applied.journal.entries)
        return applied

    def note_random_state(self) -> None:
        """Note how training goes on, unless it is noted."""
        if self.training_random_state is None:
            self.training_random_state = random_state.of_this_rank()

    def continue_random_state(self) -> None:
        """Take back what was drawn since the last training step: a run that is resumed from there has not drawn it."""
        if self.training_random_state is not None:
            random_state.restore_this_rank(self.training_random_state)

    def restore_random_state(self) -> None:
        """Set the random states of the file that was read last."""
        if self.pending.random_states is not None:
            random_state.restore(self.pending.random_states)

    def resume(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """At the start of a fit: order optimizer groups as the file has them, and set the random states.

        They were set when the file was read, too: a scheduler that asks for the number of steps has had the first batch
        drawn since, which must not be drawn again.
        """
        if self.pending.optimizers is not None and trainer.optimizers:
            optimizers.rebind(trainer.optimizers, module, self.pending.optimizers)
        for target, adapters in self.adapters.items():  # new optimizers may hold all parameters that there are
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
    """A LightningModule hook on the instance; the one that was there before (instance or class) runs too."""

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
