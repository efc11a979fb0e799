"""Modules, data and models of the documents' readers, tiny here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from cases.detection.networks import write_coco
from cases.files.scenes import write_scenes
from cases.models.language import documents, llama_folder, tokenizer_of, write_jsonl
from cases.models.questions import question_rows, write_rows, write_task
from cases.models.tiny import tiny_bert, tiny_timm
from cases.serving.uneven import TOKENS, byte_tokenizer
from cases.trainers import QUIET, Around
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

Given = Mapping[str, Callable[[], Mapping[str, Any]]]


class OwnModule(Around):
    def __init__(self) -> None:
        super().__init__(tiny_timm(depth=3, num_classes=4))


def own_loader() -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(24, 3, 16, 16), torch.arange(24) % 4), 8)


def own_trainer(callbacks: list[pl.Callback]) -> pl.Trainer:
    return pl.Trainer(max_epochs=1, callbacks=[*callbacks, ModelCheckpoint("path/to/checkpoints")], **QUIET)


def in_a_trainer() -> dict[str, Any]:
    return {"Trainer": own_trainer, "your_module": OwnModule(), "your_data": own_loader()}


def without_lightning() -> dict[str, Any]:
    model = tiny_timm(depth=5, num_classes=4)
    return {"model": model, "loader": own_loader(), "optimizer": torch.optim.AdamW(model.parameters())}


def with_scenes() -> dict[str, Any]:
    write_coco(Path("coco"))
    return {}


GIVEN: dict[str, Given] = {
    "README.md": {
        "prunerecover": in_a_trainer,
        "Without Lightning": without_lightning,
        "Step by step": without_lightning,
    },
    "docs/detection.md": {"From Python": with_scenes},
}
# Next steps of the reader.
TAIL = {
    "README.md": "trainer.fit(type(your_module)(), your_data)",
    "docs/lightning_module.md": "assert all(map(os.path.exists, ['report/report.md', 'checkpoints/plan.json']))",
}
SLOW = {
    "README.md",
    "docs/after_pruning.md",
    "docs/detection.md",
    "docs/getting_started.md",
    "docs/language_models.md",
    "docs/lightning_module.md",
    "docs/methods/pudding.md",
    "docs/methods/width.md",
    "docs/migrating.md",
    "docs/transformers_trainer.md",
    "docs/segmentation.md",
}
# Headings whose code needs more than is installed with the tests.
NEEDS = {"With lm-evaluation-harness": "lm_eval", "Quantise": "torchao", "With TRL's SFTTrainer": "trl"}
NEEDS |= {"Code for Model Optimizer": "modelopt"}
NEEDS |= {"For llama.cpp: GGUF": "gguf"}
LLAMA = {"HuggingFaceTB/SmolLM2-135M": "llama"}
SMALLER: dict[str, dict[str, str]] = {
    "docs/methods/graph_depth.md": {
        "zero_init_last=False": "channels=(8, 8, 12, 12)",
        "depth=4,": "depth=4, embed_dim=48,",
    },
    "docs/methods/pudding.md": LLAMA,
    "docs/serving.md": LLAMA,
    "docs/transformers_trainer.md": {**LLAMA, '"out", ': '"out", use_cpu=True, ', '"sft", ': '"sft", use_cpu=True, '},
    "docs/hugging_face.md": {**LLAMA, "google-bert/bert-base-uncased": "bert"},
    "docs/segmentation.md": {
        '"camvid"': '"scenes"',
        "(160, 224)": "16",
        "ignore=11": "num_workers=0",
        '"deit_tiny_patch16_224", ': '"deit_tiny_patch16_224", model_kwargs={"patch_size": 4, "depth": 2}, ',
        "schedule=8": "schedule=1",
        "calibration=128": "calibration=8",
        "max_epochs=20": "max_epochs=2",
    },
    "docs/language_models.md": {
        **LLAMA,
        "Salesforce/wikitext": "text",
        'name="wikitext-2-raw-v1", ': "",
        "length=512": "length=16",
        "allenai/ai2_arc": "questions",
        'name="ARC-Easy", ': "",
        '["arc_easy"]': '["words"], task_folder="tasks"',
    },
}


def replaced_in(page: str, folder: Path) -> dict[str, str]:
    """Return smaller models and data in place of a page's, by name; those of the hub are made in a folder."""
    replaced = SMALLER.get(page, {})
    if page == "docs/segmentation.md":
        write_scenes(folder / "scenes")
    elif page == "docs/serving.md":
        llama_folder(folder / "llama", vocab_size=TOKENS)
        byte_tokenizer().save_pretrained(folder / "llama")
    elif "llama" in replaced.values():
        llama_folder(folder / "llama", num_hidden_layers=3 if page == "docs/hugging_face.md" else 6)
    if "bert" in replaced.values():
        tiny_bert().save_pretrained(folder / "bert")  # type: ignore[operator]
        tokenizer_of(folder / "bert", pad_token="<pad>")
    if "text" in replaced.values():
        write_jsonl(folder / "text" / "train.jsonl", documents([16] * 20))
        write_jsonl(folder / "text" / "validation.jsonl", documents([16] * 4))
        write_rows(folder / "questions" / "train.jsonl", question_rows(12))
        write_rows(folder / "questions" / "test.jsonl", question_rows(8))
        write_task(folder, question_rows(8))
    if page == "docs/methods/pudding.md":
        for number, name in enumerate(("arc", "boolq")):
            rows = [{**row, "question": f"w{40 + number} {row['question']}"} for row in question_rows(60)]
            write_rows(folder / f"{name}.jsonl", rows)
    return replaced
