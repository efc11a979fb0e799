"""Fits of tiny models in transformers' Trainer, pruned or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import Trainer, TrainingArguments

from prunerecover import DepthPrune, attach
from prunerecover.callbacks.ledger.callback import LedgerCallback

ROWS, BATCH, STEPS = 32, 4, 8  # steps of an epoch
STEPWISE = {"start": 1, "every": 1, "step": 1}


def llama(**settings: Any) -> nn.Module:
    """Return a Llama of four layers, with dropout in attention, and a tensor shared by embedding and head."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4, "vocab_size": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_dropout": 0.1}
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{**sizes, **heads, "tie_word_embeddings": True, **settings})
    )


def vit(**settings: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    shape = {"image_size": 8, "patch_size": 4, "num_labels": 4, "hidden_dropout_prob": 0.1}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**{**sizes, **shape, **settings}))


def resnet() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2], "layer_type": "basic", "num_labels": 4}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))


def texts(rows: int = ROWS) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 32, (rows, 8), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def images(rows: int = ROWS) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(rows, 3, 8, 8, generator=generator)
    return [{"pixel_values": image, "labels": i % 4} for i, image in enumerate(pixels)]


def depth(**arguments: Any) -> DepthPrune:
    """Return a DepthPrune that is cheap in all parts outside the test."""
    usual = {"remove": {"attention": 2, "mlp": 1}, "schedule": STEPWISE, "importance": "magnitude", "calibration": 16}
    return DepthPrune(**{**usual, **arguments})


def trainer_of(
    folder: Path, *callbacks: LedgerCallback, model: Any = llama, data: Any = texts, cls: Any = Trainer, **settings: Any
) -> Any:
    """Return a Trainer of three epochs, with callbacks attached if there are any."""
    own = {key: settings.pop(key) for key in ("compute_loss_func", "compute_metrics", "callbacks") if key in settings}
    usual = {
        "num_train_epochs": 3,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 1e-2,
        "report_to": "none",
        "save_strategy": "epoch",
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_steps": 4,
    }
    arguments = TrainingArguments(str(folder), **{**usual, **settings})
    trainer = cls(model(), arguments, train_dataset=data(), eval_dataset=data(8), **own)
    if callbacks:
        attach(trainer, *callbacks)
    return trainer


def fit(folder: Path, *callbacks: LedgerCallback, resume: Path | None = None, **settings: Any) -> Any:
    """Train, and return the Trainer."""
    trainer = trainer_of(folder, *callbacks, **settings)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer
