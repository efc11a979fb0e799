"""Models, fits and a search as behind the old files, for their tests."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from unittest import mock

import lightning.pytorch as pl
import timm
import torch
import transformers
from cases.trainers import every_epoch, trainer_of
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from prunerecover import Budget, Plan, apply_plan, load_pruned, measure
from prunerecover.callbacks import DepthPrune, DistillRecover, LoRARecover, WidthPrune

TEXT = {"vocab_size": 13, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
TEXT |= {"intermediate_size": 12, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2}
ROUTED = {"num_hidden_layers": 2, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 4}
TRIALS = {"metric": "val_loss", "scale": 10, "trainer": {"limit_train_batches": 1}}
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Padded(nn.Module):
    """Shortcut without parameters, for a plan to rewrite before narrowing."""

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.shortcut, self.head = Padded(), nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        return self.head(F.relu(self.bn2(self.conv2(x)) + self.shortcut(x)).mean((2, 3)))


def vit(depth: int = 3) -> nn.Module:
    shape = {"img_size": 8, "patch_size": 2, "in_chans": 1, "embed_dim": 8, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=10, depth=depth, **shape)


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=3, **TEXT))


def mixture() -> nn.Module:
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**ROUTED, **TEXT))


NETWORKS = {"vit": vit, "cnn": Cnn, "llama": llama, "mixture": mixture}
PLANS = ("depth.json", "depth_merged.json", "heads.json", "channels.json", "boundary.json")
FOLDERS = ("dense_vit", "dense_cnn", "depth_merged", "channels", "block", "experts")
CHECKPOINTS = ("vit.ckpt", "vit_weights_only.ckpt", "cnn.ckpt")
PLAN_FILES = (*PLANS, *(f"{folder}/plan.json" for folder in FOLDERS))
OF_CNN = ("dense_cnn", "channels", "channels.json", "cnn.ckpt")
OF_TEXT = ("block", "experts")


def dense(name: str, folder: Path) -> nn.Module:
    """Return the dense network for a file, with the weights in `folder`."""
    network = "cnn" if name in OF_CNN else "vit"
    model = NETWORKS[network]()
    model.load_state_dict(load_file(folder / f"dense_{network}" / "model.safetensors"))
    return model.eval()


def opened(name: str, folder: Path) -> nn.Module:
    """Return the pruned network in a plan, folder or checkpoint."""
    if name.endswith(".json"):
        model = dense(name, folder)
        apply_plan(model, Plan.load(folder / name))
        return model
    return load_pruned(folder / name, Cnn() if name in OF_CNN else None)


@torch.no_grad()
def logits(model: nn.Module, name: str, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return a network's outputs for the kept inputs of a file."""
    return model(inputs["tokens"]).logits if name in OF_TEXT else model(inputs["images"])


class Classifier(pl.LightningModule):
    """A user's module around a network."""

    def __init__(self, network: str = "vit", rate: float = 0.05) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net, self.rate = Cnn() if network == "cnn" else vit(depth=2), rate

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> object:
        groups = [{"params": [p for p in self.parameters() if (p.ndim > 1) is many]} for many in (True, False)]
        groups[0]["weight_decay"] = 0.05
        optimizer = torch.optim.SGD(groups, self.rate, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]


def callbacks(network: str) -> list[pl.Callback]:
    """Return callbacks with half of the surgeries done after the second epoch of four."""
    every = {"every": 1, "step": 1}
    rest = {"calibration": 16, "merge": "never"}
    if network == "cnn":
        return [WidthPrune(Budget(macs=0.5), schedule={"start": 1, "every": 1, "times": 2}, **rest)]
    depth = DepthPrune(remove={"attention": 1, "activation": 2}, schedule=every, **rest)
    width = WidthPrune(Budget(macs=0.2), schedule={"start": 1, "every": 2, "times": 2}, **rest)
    return [depth, width, DistillRecover(), LoRARecover(rank=1, dropout=0.1)]


def fit(network: str, images: Tensor, folder: Path, ckpt: Path | None = None) -> tuple[Classifier, pl.Trainer]:
    """Train up to the fourth epoch, from a checkpoint if given; files and the dense teacher go into `folder`."""
    pl.seed_everything(0 if ckpt is None else 1, verbose=False)  # a resumed fit takes its random states from the file
    module = Classifier(network)
    trainer = trainer_of(folder, *callbacks(network), every_epoch(folder), epochs=4)
    data = DataLoader(TensorDataset(images, torch.arange(len(images)) % 10), 8, shuffle=True)
    trainer.fit(module, data, ckpt_path=ckpt)
    return module.eval(), trainer


def search(dense: nn.Module, folder: Path) -> Path:
    """Run `prunerecover plan --method boundary` for a dense ViT; return the plan, with the trials beside the file."""
    checkpoint, output = folder / "dense.ckpt", folder / "boundary.json"
    torch.save({"state_dict": {f"model.{name}": value for name, value in dense.state_dict().items()}}, checkpoint)
    options = {"config": "digits_vit_depth", "ckpt_path": checkpoint, "calibration": 8, "output": output}
    options |= {"model.depth": 3, "model.embed_dim": 8, "model.num_heads": 2, "model.warmup_epochs": 0}
    options |= {f"trainer.{name}": "false" for name in QUIET}
    options |= {"method": "boundary", "method.importance": "magnitude", "method.replace": "zero"}
    options |= {"method.n_remove": 3, "method.runs": 3, "method.trials": json.dumps(TRIALS)}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    with mock.patch.object(sys, "argv", ["prunerecover", "plan", *arguments]), suppress(SystemExit):
        runpy.run_module("prunerecover", run_name="__main__")
    return output


def made_here(folder: Path) -> bool:
    """Whether the present processor and torch round like at the making of the files in a folder."""
    with safe_open(folder / "expected.safetensors", "pt") as file:
        return file.metadata() == rounding()


def rounding() -> dict[str, str]:
    """Return the conditions of rounding: on the same processor and torch, numbers are bitwise equal."""
    here = measure(nn.Linear(1, 1), torch.ones(1, 1), repeats=0)
    return {"device": here.device_name, "cpu": torch.backends.cpu.get_cpu_capability(), "torch": here.versions["torch"]}
