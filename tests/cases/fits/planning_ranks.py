"""Planning on two CPU ranks, each a process: planning_ranks.py RESULT.json FOLDER SCENARIO ..."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from cases.depth.clock import counts_parameters
from cases.fits.ranks import run_scenarios
from cases.planning.networks import Residual, images, vit
from torch import nn

from prunerecover import Budget, frontier, plan_pruning
from prunerecover.callbacks.trials.nested import alone
from prunerecover.library import moments
from prunerecover.library.scoring import Scorer
from prunerecover.library.walk import Walks
from prunerecover.planning import budget_search
from prunerecover.store.search_store import SearchStore

torch.set_num_threads(1)
warnings.simplefilter("ignore")
DIVERGENCE = Scorer.divergence


def small() -> nn.Module:
    return vit(depth=2)


def normed() -> nn.Module:
    torch.manual_seed(0)
    body = (nn.Conv2d(3, 8, 3, padding=1), Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(8, 4)).eval()


def digest(plan) -> str:
    found = hashlib.sha256(json.dumps(plan.to_dict(), sort_keys=True).encode())
    for name in sorted(plan.tensors):
        found.update(plan.tensors[name].numpy().tobytes())
    return found.hexdigest()


def everyone(value) -> list:
    found = [None, None]
    dist.all_gather_object(found, value)
    return found


def by_itself(compute):
    with alone():
        return compute()


def of_one(compute):
    """Return a result of the first rank, planning by itself; the second waits."""
    return everyone(by_itself(compute) if dist.get_rank() == 0 else None)[0]


def planned(build, *, batches=None, same=True, **how):
    """Return the plan, the number of judged choices and the number of walks on the rank, and of a single process.

    Args:
        build: Factory of the network.
        batches: Calibration batches.
        same: Whether a single process plans the same on both ranks, and one is enough.
        **how: Further arguments of `plan_pruning`.
    """
    judged, walks, walk = [], [], Walks.walk
    Scorer.divergence = lambda *own: judged.append(1) or DIVERGENCE(*own)
    Walks.walk = lambda *own, **how: walks.append(1) or walk(*own, **how)
    try:
        batches = batches or images(3)
        plan = plan_pruning(build(), Budget(macs=0.5), batches=batches, **how)
        shared, walked, whole = len(judged), len(walks), digest(plan)
        judged.clear()

        def one():
            found = plan_pruning(build(), Budget(macs=0.5), batches=batches, loss=how.get("loss"))
            return {"one": digest(found), "alone": len(judged)}

        return everyone({"plan": whole, "judged": shared, "walks": walked, **(of_one(one) if same else by_itself(one))})
    finally:
        Scorer.divergence, Walks.walk = DIVERGENCE, walk


def shared(folder):
    return {"vit": planned(small), "normed": planned(normed)}


def stored(folder):
    """Plan with a shared store: interrupted on the second rank, then begun again."""

    def interrupted(*own):
        raise KeyboardInterrupt

    Scorer.divergence = interrupted if dist.get_rank() else DIVERGENCE
    said = ""
    try:
        plan_pruning(small(), Budget(macs=0.5), batches=images(3), store=folder / "store")
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    finally:
        Scorer.divergence = DIVERGENCE
    return {"said": everyone(said), "again": planned(small, store=folder / "store")}


def scored(folder):
    """Plan with a score and a rival, in a store with a search without a score."""
    calls, budget_search.NEAR, moments.RIDGE = [], 0.5, (1e-2, 0.1)

    def score(network):
        calls.append(1)
        return network(images(1)[0][0]).sum()

    score.__qualname__ = "score"  # as of a function of a module
    how = {"kinds": ("attention", "mlp", "neuron", "head"), "score": score, "store": folder / "store"}
    plan = plan_pruning(vit(), Budget(macs=0.6), batches=images(4), **how)
    scores = [split["score"] for split in plan.evidence["splits"]]
    return everyone({"plan": digest(plan), "calls": len(calls), "picked": plan.evidence["picked"], "scores": scores})


def clocked(folder):
    """Plan with a different clock on each rank."""
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        counts_parameters(patch, slower=1 + dist.get_rank() / 2)
        plan = plan_pruning(small(), Budget(latency=0.3), batches=images(3))
    return everyone(digest(plan))


def own_data(folder):
    """Plan with different samples on each rank."""
    batches = [(1 + dist.get_rank()) * one for one, _ in images(3)]
    return planned(small, batches=batches, same=False, loss=lambda net, x: net(x).sum())


def tables(folder):
    found = frontier(small(), batches=images(3), shares=(0.2, 0.5))
    one = of_one(lambda: [p.divergence for p in frontier(small(), batches=images(3), shares=(0.2, 0.5)).points])
    return everyone({"points": [p.divergence for p in found.points], "one": one})


def failing(folder):
    """Plan with a failure on the second rank, at a score, between scores, or by a request for other scores."""
    said = {}
    for owner, name in ((Scorer, "divergence"), (Scorer, "rebase"), (Walks, "walk")):
        method = getattr(owner, name)

        def fail(*own, method=method, **how):
            if dist.get_rank() == 1:
                raise torch.OutOfMemoryError("no memory is left")
            return method(*own, **how)

        setattr(owner, name, fail)
        try:
            plan_pruning(vit(), Budget(macs=0.4), batches=images(3))
            told = ""
        except RuntimeError as error:
            told = " ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        finally:
            setattr(owner, name, method)
        said[name] = everyone(told)
    store = SearchStore()
    store.begin(nn.Identity(), seen={})
    told = ""
    try:
        with store.shared():
            store.results("scores", [[str(dist.get_rank())]], lambda _: 0.0)
    except RuntimeError as error:
        told = f"{type(error).__name__}: {error}"
    return {**said, "lost": everyone(told), "inside": everyone(failing_inside())}


def failing_inside():
    """Return the error of a result that all ranks compute, when the second fails between two sums."""
    store = SearchStore()
    store.begin(nn.Identity(), seen={})

    def made(_):
        store.spread("first", 2, float)
        if dist.get_rank() == 1:
            raise torch.OutOfMemoryError("no memory is left")
        return store.spread("second", 2, float)

    try:
        with store.shared():
            store.results("made", [["both"]], made, everywhere=True)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    where = Path(sys.argv[2]).absolute() / "meeting"
    rank = int(os.environ.get("LOCAL_RANK", 0))
    if rank == 0:
        second = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": "1"})
    dist.init_process_group("gloo", init_method=f"file://{where}", rank=rank, world_size=2)
    run_scenarios(globals())
    if rank == 0:
        sys.exit(second.wait())
