"""One ledger per LightningModule: the edits of all callbacks, kept in every checkpoint and replayed when one is read.

The ledger hangs on the module itself, with one pair of hooks on the instance, so a user's own class needs no change. It
survives pickling and deep copies (weight averaging copies the module with it), and stays after the fit, because checkpoints
may be saved later. Loading a file first takes back what the live module has and then replays what the file has: a file may
be less pruned than the module.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
from torch import nn

from prunerecover.callbacks import optimizers, random_state
from prunerecover.callbacks.shadows import shadow_modules
from prunerecover.edits import Edit
from prunerecover.journal import Journal
from prunerecover.plan import Plan
from prunerecover.structure import get_module, unwrap
from prunerecover.surgery import Applied, apply_edits, undo

KEY = "prunerecover"
SCHEMA = "prunerecover.ledger/1"
ATTRIBUTE = "_prunerecover_ledger"
HOOKS = ("on_save_checkpoint", "on_load_checkpoint")


@dataclass
class Ledger:
    """What was done to one LightningModule.

    Attributes:
        plans: All edits so far of each network, by its path.
        journals: How to take them back, by the same paths.
        events: Surgeries in order: {"by", "epoch", "step", "units", "params", "macs"}; plain data.
        teacher: File and hash of the dense teacher, once one was saved.
        from_checkpoint: Whether the last file read held a ledger; None: no file was read.
        pending: What the file says about optimizers and random states, until the fit starts.
    """

    plans: dict[str, Plan] = field(default_factory=dict)
    journals: dict[str, Journal] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    teacher: dict[str, str] | None = None
    from_checkpoint: bool | None = None
    pending: dict[str, Any] = field(default_factory=dict)

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

    def apply(self, module: pl.LightningModule, target: str, plan: Plan) -> Applied:
        """Apply a plan, made for the network as it is now, and write it down.

        Args:
            module: The module this ledger belongs to.
            target: Path of the network in it.
            plan: With its fitted tensors.
        """
        composed = self.plans.get(target, Plan()) + plan
        applied = self._edit(module, target, plan.edits, plan)
        self.plans[target] = composed
        return applied

    def _edit(self, module: nn.Module, target: str, edits: tuple[Edit, ...], plan: Plan | None) -> Applied:
        applied = apply_edits(unwrap(get_module(module, target)), edits, None if plan is None else plan.tensors)
        applied.journal.to_cpu()
        self.journals.setdefault(target, Journal()).entries.extend(applied.journal.entries)
        return applied

    def record(self, module: pl.LightningModule) -> dict[str, Any]:
        """Return everything a checkpoint must hold, as primitives and tensors."""
        trainer = module._trainer
        return {
            "schema": SCHEMA,
            "plans": {target: plan.to_dict() for target, plan in self.plans.items()},
            "events": copy.deepcopy(self.events),
            "teacher": self.teacher,
            "optimizers": optimizers.group_names(trainer.optimizers, module) if trainer is not None else [],
            "random_states": random_state.collect(),
        }

    def restore(self, module: pl.LightningModule, record: dict[str, Any] | None) -> None:
        """Give the module the structure that a checkpoint's weights are for; weights are loaded afterwards."""
        record = record or {}
        self.from_checkpoint = bool(record)
        plans = {target: Plan.from_dict(data) for target, data in record.get("plans", {}).items()}
        if {t: p.edits for t, p in self.plans.items() if p.edits} != {t: p.edits for t, p in plans.items() if p.edits}:
            for target, journal in self.journals.items():
                undo(unwrap(get_module(module, target)), journal)
            for target, plan in plans.items():
                self._edit(module, target, plan.edits, None)
        self.plans = plans
        self.events = copy.deepcopy(record.get("events", []))
        self.teacher = record.get("teacher")
        self.pending = {name: record[name] for name in ("optimizers", "random_states") if name in record}

    def restore_random_state(self) -> None:
        """Set the random states of the file that was read last."""
        if "random_states" in self.pending:
            random_state.restore(self.pending["random_states"])

    def resume(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """At the start of a fit: order optimizer groups as the file has them, and set the random states.

        They were set when the file was read, too: a scheduler that asks for the number of steps has had the first batch
        drawn since, which must not be drawn again.
        """
        if "optimizers" in self.pending and trainer.optimizers:
            optimizers.rebind(trainer.optimizers, module, self.pending["optimizers"])
        if trainer.fit_loop._combined_loader is None:
            self.restore_random_state()
        self.pending = {}


@dataclass
class _Hook:
    """A LightningModule hook on the instance; the one that was there before (instance or class) runs too."""

    module: pl.LightningModule
    name: str
    previous: Any

    def __call__(self, checkpoint: dict[str, Any]) -> None:
        ledger = Ledger.of(self.module)
        if self.name == "on_save_checkpoint":
            checkpoint[KEY] = ledger.record(self.module)
        else:
            for module in (self.module, *shadow_modules(self.module)):
                Ledger.of(module).restore(module, checkpoint.get(KEY))
            trainer = self.module._trainer
            if trainer is not None and trainer.state.fn == "fit":
                ledger.restore_random_state()
        if self.previous is not None:
            self.previous(checkpoint)
        else:
            getattr(type(self.module), self.name)(self.module, checkpoint)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return _Hook(memo.get(id(self.module), self.module), self.name, copy.deepcopy(self.previous, memo))
