"""On any number of processes each sample counts once, as if there were one process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.detection.networks import scenes
from cases.detection.remembered import Recognised, guessed
from cases.models.tiny import tiny_llama
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from prunerecover.recipes.tasks.causal_lm import CausalLM
from prunerecover.recipes.tasks.counted_once import counted
from prunerecover.recipes.tasks.image_classifier import ImageClassifier
from prunerecover.recipes.tasks.object_detector import ObjectDetector
from prunerecover.recipes.tasks.segmenter import ImageSegmenter

VIT = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
SAMPLES, BATCH = 11, 3  # 6 and 5 samples, and the first one again


def counts(loader: Any) -> list[Any]:
    """The samples of a loader that count."""
    trainer: Any = SimpleNamespace(testing=False, val_dataloaders=loader)
    return [x for i, (batch,) in enumerate(loader) for x in batch[: counted(trainer, i, len(batch))].tolist()]


def dealt(samples: int, ranks: int, sampler: Any = DistributedSampler, **kwargs: Any) -> list[list[int]]:
    """What counts on each rank."""
    data = TensorDataset(torch.arange(samples))
    samplers = (sampler(data, num_replicas=ranks, rank=rank, shuffle=False, **kwargs) for rank in range(ranks))
    return [counts(DataLoader(data, BATCH, sampler=dealing)) for dealing in samplers]


@pytest.mark.parametrize("samples", [1, 2, 11, 12, 13])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
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


def classified() -> tuple[pl.LightningModule, Any]:
    images = torch.randn(SAMPLES, 3, 8, 8)
    rows = [(images[i], i % 4) for i in range(SAMPLES)]
    return ImageClassifier("vit_tiny_patch16_224", num_classes=4, model_kwargs={"img_size": 8, **VIT}), rows


def segmented() -> tuple[pl.LightningModule, Any]:
    annotations = torch.randint(0, 4, (SAMPLES, 8, 8))
    annotations[2, :5] = annotations[0, :3] = 255
    rows = list(zip(torch.randn(SAMPLES, 3, 8, 8), annotations, strict=True))
    return ImageSegmenter(4, "vit_tiny_patch16_224", image_size=8, model_kwargs=dict(VIT)), rows


def language() -> tuple[pl.LightningModule, Any]:
    tokens = torch.randint(0, 64, (SAMPLES, 6))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    return CausalLM(str(LLAMA)), rows


def listed(scenes: list[Any]) -> tuple[list[Any], ...]:
    return tuple(map(list, zip(*scenes, strict=True)))


def detected() -> tuple[pl.LightningModule, Any]:
    images, targets = scenes(SAMPLES)
    found = guessed(targets, [0, 1, 2], torch.Generator().manual_seed(1))
    return ObjectDetector(Recognised(images, found, 3)), list(zip(images, targets, strict=True))


LLAMA = Path("llama")
TASKS = {"classification": classified, "segmentation": segmented, "detection": detected, "language": language}


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["validate", "test"])
@pytest.mark.parametrize("task", TASKS)
def test_two_ranks_log_what_one_process_logs(
    task: str, loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if task == "language":
        tiny_llama().save_pretrained(LLAMA)
    module, rows = TASKS[task]()
    loader = DataLoader(rows, BATCH, collate_fn=listed if task == "detection" else None)
    found = []
    for ranks in (1, 2):
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=ranks,
            strategy="ddp_spawn" if ranks > 1 else "auto",
            logger=False,
            enable_progress_bar=False,
        )
        found += getattr(trainer, loop)(module, loader, verbose=False)
    counting, real = ({k: v for k, v in found[0].items() if ("loss" in k or "perp" in k) is r} for r in (False, True))
    assert {name: found[1][name] for name in counting} == counting  # exactly
    assert {name: found[1][name] for name in real} == pytest.approx(real, rel=1e-6)
