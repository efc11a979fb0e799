"""Fits of language models on two CPU ranks: language_ranks.py RESULT.json FOLDER SCENARIO ..."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import lightning.pytorch as pl
import torch
from cases.fits.ranks import run_scenarios
from cases.fits.routed_lora import Language, batches, fit
from cases.models.routed_language import removing
from cases.trainers import every_epoch, trainer_of
from cases.two_ranks import Agreement, digest
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from prunerecover.callbacks import DepthPrune

torch.set_num_threads(1)


class Steady(Language):
    """Plain SGD: rounding errors in the gradient remain rounding errors in the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.double()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-2, momentum=0.9)


def half(rows: int = 32) -> DataLoader[Any]:
    """Return every other sample in order, from the rank's own; Lightning itself would shuffle."""
    samples: Any = batches(rows).dataset
    rank = int(os.environ.get("LOCAL_RANK", 0))
    return DataLoader(samples, 4, sampler=DistributedSampler(samples, num_replicas=2, rank=rank, shuffle=False))


def shared(folder: Path) -> dict[str, Any]:
    """Adapters for all sets, plain and with accumulated batches, and resumed."""
    found = {}
    for name, more in {
        "plain": {},
        "accumulated": {"accumulate_grad_batches": 2},
        "resumed": {"resume": folder / "plain" / "epoch=0.ckpt"},
    }.items():
        agreement, module = Agreement(), Steady()
        settings = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False, "data": half(), **more}
        fit(folder / name, agreement, module=module, **settings)  # type: ignore[arg-type]
        torch.save(module.state_dict(), folder / f"{name}.pt")
        found[name] = {"steps": agreement.steps, "agreed": agreement.agreed, "digest": digest(module)}
    return found


class Sharded(Steady):
    """Shards its network in configure_model, as FSDP2 requires."""

    def configure_model(self) -> None:
        if not hasattr(self, "sharded"):
            self.sharded = True
            mesh = self.device_mesh["data_parallel"]  # type: ignore[index]
            for layer in self.net.model.layers:  # type: ignore[union-attr]
                fully_shard(layer, mesh=mesh)
            fully_shard(self.net, mesh=mesh)


def pruned_fit(folder: Path, module: Language, data: Any, **settings: Any) -> None:
    """Fit without two blocks, by a given plan, and keep a file of every epoch."""
    pl.seed_everything(7, verbose=False)
    plan = removing(Language().net, 2, 4)
    callbacks = DepthPrune(plan=plan, merge="never"), every_epoch(folder)
    trainer_of(folder, *callbacks, use_distributed_sampler=False, **settings).fit(module, data)


def sharded(folder: Path) -> None:
    """Fit with FSDP2, with the model pruned before sharding."""
    strategy = ModelParallelStrategy(2, 1, save_distributed_checkpoint=False)
    pruned_fit(folder, Sharded(), half(), devices=2, strategy=strategy)


if __name__ == "__main__":
    run_scenarios(globals())
