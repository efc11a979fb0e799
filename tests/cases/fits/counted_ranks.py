"""Every task validated and tested on two CPU ranks. A script: counted_ranks.py RESULT.json FOLDER SCENARIO ..."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import lightning.pytorch as pl
import torch
from cases.detection.networks import scenes
from cases.detection.remembered import Recognised, guessed
from cases.fits.ranks import run_scenarios
from cases.models.questions import question_rows, write_rows
from cases.models.tiny import VOCABULARY
from torch.utils.data import DataLoader

from prunerecover.recipes.data.language.choice_data import ChoiceData
from prunerecover.recipes.tasks.causal_lm import CausalLM
from prunerecover.recipes.tasks.image_classifier import ImageClassifier
from prunerecover.recipes.tasks.object_detector import ObjectDetector
from prunerecover.recipes.tasks.segmenter import ImageSegmenter

Case = tuple[pl.LightningModule, Any]
VIT = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
SAMPLES, BATCH = 11, 3  # 6 and 5 samples, and the first one again


def classified(folder: Path) -> Case:
    images = torch.randn(SAMPLES, 3, 8, 8)
    rows = [(images[i], i % 4) for i in range(SAMPLES)]
    return ImageClassifier("vit_tiny_patch16_224", num_classes=4, model_kwargs={"img_size": 8, **VIT}), rows


def segmented(folder: Path) -> Case:
    annotations = torch.randint(0, 4, (SAMPLES, 8, 8))
    annotations[2, :5] = annotations[0, :3] = 255
    rows = list(zip(torch.randn(SAMPLES, 3, 8, 8), annotations, strict=True))
    return ImageSegmenter(4, "vit_tiny_patch16_224", image_size=8, model_kwargs=dict(VIT)), rows


def language(folder: Path) -> Case:
    """Of the model in the folder."""
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, 6))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    return CausalLM(str(folder / "llama")), rows


def padded(folder: Path) -> Case:
    """Return sequences of 2 to 12 tokens, of which number 5 has no labels."""
    lengths = torch.arange(SAMPLES) + 2
    here = torch.arange(lengths.max())[None] < lengths[:, None]
    tokens = torch.randint(3, VOCABULARY, here.shape)
    labels = tokens.where(here, -100)
    labels[5] = -100
    columns = {"input_ids": tokens, "attention_mask": here.long(), "labels": labels}
    return CausalLM(str(folder / "llama")), [{name: rows[i] for name, rows in columns.items()} for i in range(SAMPLES)]


def asked(folder: Path) -> Case:
    """Questions of two and three choices."""
    write_rows(folder / "questions" / "validation.jsonl", question_rows(SAMPLES))
    model = str(folder / "llama")
    splits = {"val_split": "validation", "test_split": "validation"}
    return CausalLM(model), ChoiceData(str(folder / "questions"), model=model, batch_size=BATCH, **splits)


def detected(folder: Path) -> Case:
    images, targets = scenes(SAMPLES)
    found = guessed(targets, [0, 1, 2], torch.Generator().manual_seed(1))
    return ObjectDetector(Recognised(images, found, 3)), list(zip(images, targets, strict=True))


def listed(scenes: list[Any]) -> tuple[list[Any], ...]:
    return tuple(map(list, zip(*scenes, strict=True)))


LOOPS = ("validate", "test")
TASKS: dict[str, Callable[[Path], Case]] = {
    "classification": classified,
    "segmentation": segmented,
    "detection": detected,
    "language": language,
    "padded language": padded,
    "questions": asked,
}


def logged(folder: Path, ranks: int = 2) -> dict[str, dict[str, float]]:
    """Return the logged values of each loop and task."""
    found = {}
    settings: dict[str, Any] = {"strategy": "ddp"} if ranks > 1 else {}
    for task, make in TASKS.items():
        pl.seed_everything(0, verbose=False)
        module, data = make(folder)
        if isinstance(data, list):
            data = DataLoader(data, BATCH, collate_fn=listed if task == "detection" else None)
        for loop in LOOPS:
            runner = pl.Trainer(accelerator="cpu", devices=ranks, logger=False, enable_progress_bar=False, **settings)
            (found[f"{task}, {loop}"],) = getattr(runner, loop)(module, data, verbose=False)
    return found


if __name__ == "__main__":
    run_scenarios(globals())
