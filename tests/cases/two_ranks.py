"""Fits on two CPU ranks, each a process. A script of test_ddp.py: two_ranks.py RESULT.json FOLDER SCENARIO ..."""

from __future__ import annotations

import hashlib
import os
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from cases.fits.quality import Sized, one_by_one
from cases.fits.ranks import run_scenarios
from cases.models.habits import Manual, Plain, Unaugmented, dataset, loader
from cases.trainers import every_epoch, trainer_of
from cases.width.narrow_fits import CNN, RESIDUAL, Cnn, NarrowAt, ResidualCnn
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from safetensors import safe_open
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from prunerecover import (
    Budget,
    DepthPrune,
    DistillRecover,
    LoRARecover,
    Prune,
    RecoverySchedule,
    WidthPrune,
    load_pruned,
    plan_depth,
)
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.planning import depth
from prunerecover.planning.plan_depth import depth_plan

torch.set_num_threads(1)
ONCE = {"remove": {"attention": 1, "activation": 2}, "schedule": {"start": 1}}
PROGRESSIVE = {"remove": {"attention": 2, "activation": 1}, "schedule": {"start": 1, "every": 1, "step": 1}}


def digest(module) -> str:
    values = [p.detach().flatten().double() for p in module.parameters()]
    return hashlib.sha256(torch.cat(values).numpy().tobytes()).hexdigest()


class Agreement(pl.Callback):
    """Compares the ranks' weights, and those of averaged copies, after every batch."""

    def __init__(self, averaged=None):
        self.averaged, self.steps, self.agreed = averaged, 0, 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        modules = [pl_module] if self.averaged is None else [pl_module, self.averaged._average_model.module]
        everyone = [None] * trainer.world_size
        dist.all_gather_object(everyone, [digest(module) for module in modules])
        self.steps += 1
        self.agreed += all(each == everyone[0] for each in everyone)


def fit(
    folder,
    module,
    *callbacks,
    prune=ONCE,
    surgeon=None,
    data=None,
    val=None,
    resume=None,
    strategy="ddp",
    epochs=3,
    averaged=None,
    **more,
):
    pl.seed_everything(7, verbose=False)
    agreement = Agreement(averaged)
    surgeon = DepthPrune(**prune, calibration=16, merge="never") if surgeon is None else surgeon
    own = surgeon, *callbacks, agreement, every_epoch(folder)
    runner = trainer_of(folder, *own, epochs=epochs, devices=2, strategy=strategy, **more)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner.fit(module, loader() if data is None else data, val, ckpt_path=resume)
    return {
        "removed": runner.callback_metrics.get("removed_units", torch.tensor(0.0)).item(),
        "unsynced": [str(w.message) for w in caught if "sync_dist" in str(w.message)],
        "world": runner.world_size,
        "steps": agreement.steps,
        "agreed": agreement.agreed,
        "events": [event.to_dict() for event in Ledger.of(module).events],
        "judged": [[s.epoch, s.recovered, s.kept] for t in Ledger.of(module).quality.values() for s in t.steps],
        "plans": {target: str(plan.edits) for target, plan in Ledger.of(module).plans.items()},
        "digest": digest(module),
    }


def seeded(make=Plain):
    pl.seed_everything(7, verbose=False)
    return make()


def progressive(folder):
    return fit(folder, seeded(), DistillRecover(), prune=PROGRESSIVE, accumulate_grad_batches=2)


def until_the_metric_falls(folder):
    """Run with validation on each rank's half; the last step is rolled back on both."""
    fell = one_by_one(schedule={"start": 1})
    whole = fit(folder, seeded(Sized), DistillRecover(), surgeon=fell, val=loader(shuffle=False), epochs=5)
    again = {"surgeon": one_by_one(schedule={"start": 1}), "resume": folder / "epoch=2.ckpt", "epochs": 5}
    part = fit(folder / "again", seeded(Sized), DistillRecover(), val=loader(shuffle=False), **again)
    return {"whole": whole, "part": part}


def reducers(folder):
    """Every way to build the reducer; unpruned parameters without gradients would be found out at the next step."""
    strategies = {
        "find_unused": "ddp_find_unused_parameters_true",
        "static": DDPStrategy(static_graph=True),
        "bucket_view": DDPStrategy(gradient_as_bucket_view=True),
    }
    return {name: fit(folder / name, seeded(), strategy=strategy) for name, strategy in strategies.items()}


def manual(folder):
    return fit(folder, seeded(Manual), DistillRecover(features=True))


def averaged(folder):
    callback = EMAWeightAveraging(decay=0.9)
    return fit(folder, seeded(), callback, averaged=callback)


def resumed(folder):
    """Run from before and after the surgery, with the teacher in its file, and its outputs in a file of each rank."""

    def run(place, resume=None):
        return fit(place, seeded(Unaugmented), DistillRecover(cache=True), resume=resume)

    whole = run(folder)
    answers = {"0": set(), "1": set()}
    for path in folder.glob("answers-*/*/*"):
        answers[path.parts[-3][-1]] |= set(safe_open(path, "pt").keys())
    parts = [run(folder / f"from{epoch}", folder / f"epoch={epoch}.ckpt") for epoch in (0, 1)]
    return {"whole": whole, "parts": parts, "answers": {rank: len(own) for rank, own in answers.items()}}


def narrowed(folder):
    """Run with channels, BatchNorm and a rewritten shortcut; also from the file between the surgeries."""
    strategies = {"plain": "ddp", "bucket_view": DDPStrategy(gradient_as_bucket_view=True)}
    found = {
        name: fit(folder / name, seeded(Cnn), surgeon=NarrowAt(CNN), strategy=strategy)
        for name, strategy in strategies.items()
    }
    resume = folder / "plain" / "epoch=1.ckpt"
    found["resumed"] = fit(folder / "resumed", seeded(Cnn), surgeon=NarrowAt(CNN), resume=resume)
    found["residual"] = fit(folder / "residual", seeded(ResidualCnn), surgeon=NarrowAt(RESIDUAL))
    surgeon = WidthPrune(Budget(macs=0.3), calibration=16, schedule={"start": 1}, merge="never")
    found["width_prune"] = fit(folder / "width_prune", seeded(Cnn), surgeon=surgeon)
    return found


def depth_and_width(folder):
    surgeon = Prune(Budget(macs=0.2), kinds=("attention", "neuron"), calibration=16, schedule=1, merge="never")
    return fit(folder, seeded(), surgeon=surgeon)


def adapted(folder):
    """Run with adapters from the start, merged for a surgery and injected again; resumed from before and after it."""
    whole = fit(folder, seeded(), LoRARecover(rank=2))
    parts = [
        fit(folder / f"from{epoch}", seeded(), LoRARecover(rank=2), resume=folder / f"epoch={epoch}.ckpt")
        for epoch in (0, 1)
    ]
    return {"whole": whole, "parts": parts}


def rated(folder):
    """Rates after a surgery; resumed in the middle of the warm-up, too."""
    whole = fit(folder, seeded(), RecoverySchedule(4))
    part = fit(folder / "resumed", seeded(), RecoverySchedule(4), resume=folder / "epoch=1.ckpt")
    return {"whole": whole, "parts": [part]}


def local_data(folder):
    """Run with different samples on each rank, on which single ranks would decide differently."""
    rank = int(os.environ.get("LOCAL_RANK", 0))
    generator = torch.Generator().manual_seed(100 + rank)
    images = (1 + 2 * rank) * torch.randn(48, 1, 8, 8, generator=generator)
    data = DataLoader(TensorDataset(images, torch.randint(0, 4, (48,), generator=generator)), 8)
    decided = []

    def spy(*args, **kwargs):
        plan = depth_plan(*args, **kwargs)
        decided.append(hashlib.sha256(str(sorted(plan.evidence["importance"].items())).encode()).hexdigest())
        return plan

    depth.depth_plan = spy
    try:
        result = fit(folder, seeded(), data=data, use_distributed_sampler=False)
    finally:
        depth.depth_plan = depth_plan
    everyone = [None, None]
    dist.all_gather_object(everyone, (decided, result["plans"]))
    return {**result, "decided": [each[0] for each in everyone], "plans": [each[1] for each in everyone]}


class Sharded(Plain):
    """Shards its network in configure_model, as FSDP2 requires."""

    def configure_model(self):
        if not hasattr(self, "sharded"):
            self.sharded = True
            for block in self.net.blocks:
                fully_shard(block, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


def sharded(folder):
    """Run a given plan. A resumed run may start from other weights, because the file has the right ones."""
    plan = plan_depth(seeded().net, remove=ONCE["remove"], batches=[dataset().tensors[0]])
    results = {}
    for name, resume in (("whole", None), ("again", folder / "whole" / "epoch=0.ckpt")):
        strategy = ModelParallelStrategy(2, 1, save_distributed_checkpoint=False)
        module = seeded(Sharded)
        if resume:
            torch.nn.init.zeros_(module.net.head.weight)
        own = DepthPrune(plan=plan), every_epoch(folder / name)
        trainer_of(folder, *own, devices=2, strategy=strategy).fit(module, loader(), ckpt_path=resume)
        results[name] = {
            "events": [e.to_dict() for e in Ledger.of(module).events],
            "digest": digest(load_pruned(folder / name / "epoch=1.ckpt")),
        }
    return results


if __name__ == "__main__":
    run_scenarios(globals())
