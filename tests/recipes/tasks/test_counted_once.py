"""On any number of processes each sample counts once, as in a single process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases.fits.counted_ranks import LOOPS, TASKS, logged
from cases.fits.ranks import two_ranks
from cases.models.language import llama_folder
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from prunerecover.recipes.tasks.evaluated_module import counted

BATCH = 3
Logged = dict[str, dict[str, float]]


def counts(loader: Any) -> list[Any]:
    """Return the counted samples of a loader."""
    trainer: Any = SimpleNamespace(testing=False, val_dataloaders=loader)
    return [x for i, (batch,) in enumerate(loader) for x in batch[: counted(trainer, i, len(batch))].tolist()]


def dealt(samples: int, ranks: int, sampler: Any = DistributedSampler, **kwargs: Any) -> list[list[int]]:
    """Return the counted samples of each rank."""
    data = TensorDataset(torch.arange(samples))
    samplers = (sampler(data, num_replicas=ranks, rank=rank, shuffle=False, **kwargs) for rank in range(ranks))
    return [counts(DataLoader(data, BATCH, sampler=dealing)) for dealing in samplers]


@pytest.mark.parametrize("samples", [1, 11, 12])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_each_sample_counts_on_one_rank(samples: int, ranks: int) -> None:
    assert sorted(x for found in dealt(samples, ranks) for x in found) == list(range(samples))


def test_samples_that_are_dealt_once_all_count() -> None:
    assert [len(found) for found in dealt(7, 2, UnrepeatedDistributedSampler)] == [4, 3]
    assert [len(found) for found in dealt(7, 2, drop_last=True)] == [3, 3]


def test_loaders_without_a_sampler_for_ranks_are_left_alone() -> None:
    data = TensorDataset(torch.arange(7))
    assert counts(DataLoader(data, 2)) == list(range(7))
    assert len(counts(DataLoader(data, None, collate_fn=lambda x: (x[0][None],)))) == 7


def test_batch_sampler_of_the_users_own() -> None:
    data = TensorDataset(torch.arange(5))
    sampler = DistributedSampler(data, num_replicas=2, rank=1, shuffle=False)
    assert counts(DataLoader(data, batch_sampler=BatchSampler(sampler, 2, drop_last=False))) == [1, 3]


@pytest.fixture(scope="module")
def of_one_and_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Logged, Logged]:
    """Return the logs of every task and loop by a single process, and by a pair of processes."""
    folder = tmp_path_factory.mktemp("ranks")
    llama_folder(folder / "logged" / "llama")
    return logged(folder / "logged", ranks=1), two_ranks(folder, "logged", script="fits/counted_ranks.py")["logged"]


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("task", TASKS)
def test_two_ranks_log_what_one_process_logs(task: str, loop: str, of_one_and_two: tuple[Logged, Logged]) -> None:
    one, two = (found[f"{task}, {loop}"] for found in of_one_and_two)
    counting, real = ({k: v for k, v in one.items() if ("loss" in k or "perp" in k) is r} for r in (False, True))
    assert {name: two[name] for name in counting} == counting  # exactly
    assert {name: two[name] for name in real} == pytest.approx(real, rel=1e-6)
