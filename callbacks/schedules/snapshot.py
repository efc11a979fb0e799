"""Snapshot of a module in the middle of a fit, to go back to: structure, values, and states of the optimizers.

Going back equals loading a checkpoint in a resumed run, without the progress of the fit: epochs, steps, learning rates
and random states go on.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from prunerecover.callbacks.ledger import optimizer_groups as optimizers
from prunerecover.callbacks.ledger.averaged_copies import averaged_copies
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.ledger.random_state import isolated
from prunerecover.callbacks.surgery.in_trainer import forget_best, rewrap
from prunerecover.checkpoint.ledger_record import LedgerRecord
from prunerecover.plan.plan import Plan


@dataclass(frozen=True)
class Snapshot:
    """State of a module to go back to, on the CPU.

    Attributes:
        record: Record of the ledger.
        values: Parameters and buffers, by name: of the module, then of its averaged copies.
        states: States of the optimizers, by the number of the parameter.
    """

    record: LedgerRecord
    values: list[dict[str, Tensor]]
    states: list[dict[int, Any]]

    @classmethod
    def of(cls, trainer: pl.Trainer, module: pl.LightningModule, target: str) -> Snapshot:
        """Return a snapshot of a module in its present state.

        Args:
            trainer: Trainer in a fit, between steps.
            module: LightningModule of the fit.
            target: Path of the network about to change; the record lists the network as touched by surgery from now on.
        """
        record = Ledger.of(module).present(module)
        record = record.model_copy(update={"plans": {target: Plan(), **record.plans}})
        modules = (module, *averaged_copies(module))
        values = [tree_map_only(Tensor, _kept, _tensors(m)) for m in modules]
        states = [tree_map_only(Tensor, _kept, o.state_dict()["state"]) for o in trainer.optimizers]
        return cls(record, values, states)

    def restore(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Restore a module, with averaged copies, optimizers and DDP wrapper.

        Args:
            trainer: Trainer in the same fit, or in a resumed fit, between steps.
            module: LightningModule of the fit.
        """
        gone = set(module.parameters())
        optimizers.forget_gradients(trainer.optimizers)
        with isolated(), torch.inference_mode(False):
            for number, changed in enumerate((module, *averaged_copies(module))):
                Ledger.of(changed).go_back(changed, self.record)
                _load(changed, self.values[min(number, len(self.values) - 1)])
        optimizers.rebind(trainer.optimizers, module, self.record.optimizers or [], gone)
        for optimizer, state in zip(trainer.optimizers, self.states, strict=True):
            _load_state(optimizer, state)
        rewrap(trainer)
        forget_best(trainer)

    def to_dict(self) -> dict[str, Any]:
        """Return primitives and tensors for a checkpoint."""
        return {"record": self.record.to_dict(), "values": self.values, "states": self.states}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot of a dict from `to_dict`."""
        return cls(LedgerRecord.from_dict(data["record"]), data["values"], data["states"])


def _kept(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict(chain(module.named_parameters(), module.named_buffers()))


@torch.no_grad()
def _load(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, tensor in _tensors(module).items():
        if isinstance(tensor, nn.Parameter) or (name in values and values[name].shape == tensor.shape):
            tensor.copy_(values[name])  # buffers of another shape are caches, filled again by forward passes


def _load_state(optimizer: Optimizer, state: dict[int, Any]) -> None:
    """Give an optimizer another state; its groups stay the objects held by schedulers, with their present rates."""
    groups, held = optimizer.param_groups, optimizer.state
    held.clear()  # state of parameters outside all groups
    optimizer.load_state_dict({"state": copy.deepcopy(state), "param_groups": optimizer.state_dict()["param_groups"]})
    loaded = dict(optimizer.state)
    optimizer.param_groups, optimizer.state = groups, held
    held.update(loaded)
