"""TRL's SFTTrainer, where TRL is installed: a subclass of transformers' Trainer, with separate losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.fits.transformers_fits import depth, llama, texts
from cases.trainers import assert_same
from transformers import TrainingArguments

from prunerecover import Budget, DistillRecover, LoRARecover, WidthPrune, attach, load_pruned
from prunerecover.callbacks.ledger.ledger import Ledger

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.slow


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {f"w{i}": i for i in range(30)} | {"<eos>": 30, "<pad>": 31}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>")


def rows() -> Any:
    from datasets import Dataset

    return Dataset.from_list([{"input_ids": row["input_ids"].clamp(max=29).tolist()} for row in texts()])


def fit(folder: Path, *callbacks: Any, resume: Path | None = None, **settings: Any) -> Any:
    usual = {"num_train_epochs": 3, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "logging_steps": 4}
    quiet = {"report_to": "none", "save_strategy": "epoch", "use_cpu": True, "disable_tqdm": True, "bf16": False}
    arguments: TrainingArguments = trl.SFTConfig(str(folder), **{**usual, **quiet, **settings})
    trainer = trl.SFTTrainer(llama(), arguments, train_dataset=rows(), processing_class=tokenizer())
    attach(trainer, *callbacks)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer


RECOVERIES: dict[str, Any] = {
    "a teacher": lambda: [depth(importance="output_divergence"), DistillRecover()],
    "adapters": lambda: [depth(schedule=2), LoRARecover(rank=2, start=1)],
    "neurons, alike in all layers": lambda: [
        WidthPrune(Budget(params=0.1), kinds=("neuron",), equal_layers=True, calibration=16, schedule=1)
    ],
}


@pytest.mark.parametrize("name", RECOVERIES)
def test_resumed_equals_uninterrupted(name: str, tmp_path: Path) -> None:
    settings = {"gradient_accumulation_steps": 2, "packing": False} if name == "a teacher" else {}
    whole = fit(tmp_path / "whole", *RECOVERIES[name](), **settings)
    step = whole.state.max_steps // 3
    assert Ledger.of(whole.pruning.module).events
    again = fit(tmp_path / "again", *RECOVERIES[name](), resume=tmp_path / f"whole/checkpoint-{2 * step}", **settings)
    assert_same(whole.model, again.model)


def test_its_class_name_and_metrics_are_its_own(tmp_path: Path) -> None:
    trainer = fit(tmp_path, depth(importance="taylor", schedule=1), DistillRecover())
    assert isinstance(trainer, trl.SFTTrainer)
    logged = [log for log in trainer.state.log_history if "distillation_loss" in log]
    assert logged
    assert all(0 <= log["mean_token_accuracy"] <= 1 for log in logged)
    opened = load_pruned(tmp_path / "checkpoint-24")
    tokens = torch.stack([row["input_ids"] for row in texts(4)])
    with torch.no_grad():
        assert torch.equal(opened(tokens).logits, trainer.model.eval()(tokens).logits)


def test_adapters_of_peft_are_refused(tmp_path: Path) -> None:
    from peft import LoraConfig

    config, words = trl.SFTConfig(str(tmp_path), use_cpu=True, report_to="none", bf16=False), tokenizer()
    trainer = trl.SFTTrainer(llama(), config, train_dataset=rows(), processing_class=words, peft_config=LoraConfig())
    with pytest.raises(ValueError, match="Leave peft_config out"):
        attach(trainer, depth())
