"""Files of each kind in the package: making, and opening the network.

Weights and inputs are whole thousandths, drawn by seed: the same on every processor, and therefore in no file.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from cases import old_files
from cases.trainers import every_epoch, trainer_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from prunerecover import (
    Budget,
    Plan,
    PlanSet,
    apply_plan,
    find_groups,
    load_pruned,
    load_routed,
    plan_depth,
    plan_pruning,
    plan_width,
)
from prunerecover.callbacks import DepthPrune, LoRARecover, Prune, WidthPrune
from prunerecover.model.copies import share_copy
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Edit, Refit
from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.router import PrefixRouter
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.merging import block_removals
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.groups.narrow_edits import narrow_edits

Rows = Sequence[Any]


class Residual(nn.Module):
    """Block with a shortcut, as in a ResNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class ResidualCnn(nn.Module):
    """A stem, blocks of convolutions, and an MLP before the head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.blocks = nn.ModuleList(Residual(6) for _ in range(3))
        self.first, self.act, self.second, self.head = nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6), nn.Linear(6, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(images)))
        for block in self.blocks:
            x = block(x)
        x = x.mean((2, 3))
        return self.head(x + self.second(self.act(self.first(x))))


BUILD: dict[str, Callable[[], nn.Module]] = {**old_files.NETWORKS, "residual": ResidualCnn}


def whole(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Thousandths between -1 and 1."""
    return torch.randint(-1000, 1001, tuple(shape), generator=generator) / 1000


def dense(network: str) -> nn.Module:
    """Return a dense network with branches of visible effect on the output."""
    model, generator = BUILD[network](), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in sorted(model.state_dict().items()):
            if value.is_floating_point():
                drawn, fan_in = whole(value.shape, generator), max(math.prod(value.shape[1:]), 1)
                spread = 2.5 * fan_in**-0.5 if value.ndim > 1 else 0.2
                value.copy_(drawn * spread + (value.ndim == 1 and name.endswith(("weight", "var"))))
    return model.eval()


def inputs() -> dict[str, Tensor]:
    """Return the images and tokens for comparisons of networks, and for plans."""
    tokens = torch.randint(3, 13, (16, 4), generator=torch.Generator().manual_seed(2))
    return {"images": whole((24, 1, 8, 8), torch.Generator().manual_seed(1)), "tokens": tokens}


def rows(network: str) -> Rows:
    """Labelled batches."""
    given = inputs()
    if network in ("llama", "mixture"):
        return [{"input_ids": part, "labels": part} for part in given["tokens"].split(8)]
    labels = torch.arange(24) % 10
    return list(zip(given["images"].split(8), labels.split(8), strict=True))


def loss(model: nn.Module, batch: Any) -> Tensor:
    """The cross-entropy of labelled images."""
    return F.cross_entropy(model(batch[0]), batch[1])


@torch.no_grad()
def outputs(model: nn.Module) -> Tensor:
    """Logits of the kept inputs."""
    given = inputs()
    return model(given["tokens"][:4]).logits if hasattr(model, "config") else model.eval()(given["images"][:4])


def smaller_heads(model: nn.Module, *, batches: Rows) -> Plan:
    """Return a handmade plan with only the first dimensions of heads, and some refitted layers."""
    groups, generator = find_groups(model, batches, "head_dim"), torch.Generator().manual_seed(4)
    edits: list[Edit] = [*narrow_edits(groups, {group.name: torch.arange(2, group.size) for group in groups})]
    pruned, tensors = share_copy(model), dict[str, Tensor]()
    apply_edits(pruned, edits)
    for group in groups:
        for path in dict.fromkeys(part.tensor.rpartition(".")[0] for part in group.slices):
            own = get_module(pruned, path).named_parameters()
            values = {f"e{len(edits)}.{name}": whole(value.shape, generator) for name, value in own}
            edits.append(Refit(unit=path, tensors=tuple(values)))
            tensors |= values
    return plan_for(model, edits, method="hand", tensors=tensors)


# Plans: the network, and the planning.

Planned = tuple[str, Callable[..., Plan]]
UNITS = {"block": 1, "layer": 1, "activation": 1}
PLANS: dict[str, Planned] = {
    "affine": ("vit", partial(plan_depth, remove={"attention": 1, "mlp": 1, "activation": 1})),
    "share": ("vit", partial(plan_depth, budget=Budget(macs=0.4))),
    "run": ("vit", partial(plan_depth, remove={"block": 2}, search="run")),
    "zero": ("vit", partial(plan_depth, remove={"attention": 2}, replace="zero", importance="taylor", loss=loss)),
    "identity": ("vit", partial(plan_depth, remove={"mlp": 1}, replace="identity", importance="magnitude")),
    "influence": ("vit", partial(plan_depth, remove={"block": 1}, importance="block_influence", search="one_shot")),
    "gates": ("vit", partial(plan_depth, remove={"attention": 1}, importance="gate_gradient", loss=loss)),
    "by_loss": (
        "vit",
        partial(plan_depth, remove={"mlp": 1}, importance="cross_entropy", loss=loss, search="one_shot"),
    ),
    "graph": ("residual", partial(plan_depth, remove=UNITS)),
    "graph_share": ("residual", partial(plan_depth, budget=Budget(macs=0.3))),
    "graph_taylor": ("residual", partial(plan_depth, remove={"layer": 2}, importance="squared_taylor", loss=loss)),
    "rounds": ("residual", partial(plan_depth, remove={"layer": 2}, importance="magnitude", search="rounds")),
    "two_to_one": ("vit", partial(plan_depth, remove={"attention": 1, "mlp": 1}, search="two_to_one")),
    "llama_block": ("llama", partial(plan_depth, remove={"block": 1})),
    "neurons": ("vit", partial(plan_width, budget=Budget(macs=0.3))),
    "heads": ("vit", partial(plan_width, budget=Budget(ratio={"head": 0.5}), allocation="uniform")),
    "head_dim": ("vit", smaller_heads),
    "tolerance": ("vit", partial(plan_width, budget=Budget(params=0.3), allocation="fair_pruner")),
    "channels": ("residual", partial(plan_width, budget=Budget(macs=0.4))),
    "channels_by_norm": ("residual", partial(plan_width, budget=Budget(macs=0.3), importance="l2_norm")),
    "hidden": ("llama", partial(plan_width, budget=Budget(params=0.3), kinds=("hidden",))),
    "experts": ("mixture", partial(plan_width, budget=Budget(ratio={"expert": 0.25}), allocation="uniform")),
    "joint": ("vit", partial(plan_pruning, budget=Budget(macs=0.4))),
    "joint_cnn": ("residual", partial(plan_pruning, budget=Budget(macs=0.4))),
}


def plan(name: str) -> Plan:
    """Make the plan of a file again."""
    network, how = PLANS[name]
    return how(dense(network), batches=rows(network))


# Folders: their plans, merged where possible; and two folders of a language model and its router.

FOLDERS = ("affine", "graph", "channels", "joint", "llama_block", "hidden", "head_dim")
NEEDS_DENSE = ("graph", "channels")


def opened(name: str, folder: Path) -> nn.Module:
    """Return the network of a plan, folder or checkpoint by file name."""
    path = folder / name
    if path.suffix == ".json":
        model = dense(PLANS[path.stem][0])
        apply_plan(model, Plan.load(path))
        return model
    if path.suffix == ".ckpt":
        return load_pruned(path, BUILD[CHECKPOINTS[path.stem][0]]())
    return load_pruned(path, dense(PLANS[name][0]) if name in NEEDS_DENSE else None)


def routed() -> RoutedCausalLM:
    """Return a Llama with two sets of blocks and a router between them."""
    model = dense("llama")
    plans = tuple(plan_for(model, block_removals(model, [block]), method="by hand") for block in (1, 2))
    router, generator = PrefixRouter(8, 2, blocks=1, hidden=4), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in router.parameters():
            value.copy_(whole(value.shape, generator))
    return RoutedCausalLM(model, PlanSet(names=("first", "second"), plans=plans), router.eval())


def answers(model: RoutedCausalLM) -> Tensor:
    """Return the chosen set of each prompt, before the generated tokens: `(N, 1 + T)`."""
    tokens = inputs()["tokens"]
    given = model.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0)
    return torch.cat([torch.tensor(model.route(tokens))[:, None], given[:, 4:]], 1)


def reopened(folder: Path) -> RoutedCausalLM:
    """The folder of `routed`."""
    return load_routed(folder / "routed", dense("llama"))


# Checkpoints: a fit of four epochs; the file is of the second, after all surgery.


class Classifier(pl.LightningModule):
    """A user's module around a network."""

    def __init__(self, network: str = "vit") -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = dense(network).train()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


FIRST = {"schedule": 1, "calibration": 16}
CHECKPOINTS: dict[str, tuple[str, Callable[[], list[pl.Callback]]]] = {
    "depth": ("vit", lambda: [DepthPrune(remove={"attention": 1, "mlp": 1}, **FIRST)]),
    "layers": ("residual", lambda: [DepthPrune(remove={"layer": 1, "block": 1}, **FIRST)]),
    "width": ("residual", lambda: [WidthPrune(Budget(macs=0.4), **FIRST)]),
    "both": ("vit", lambda: [Prune(Budget(macs=0.4), **FIRST)]),
    "adapters": ("vit", lambda: [DepthPrune(remove={"mlp": 1}, **FIRST), LoRARecover(rank=1)]),
}


def fit(name: str, folder: Path, ckpt: Path | None = None) -> Classifier:
    """Train up to the fourth epoch, from a checkpoint if given; files go into `folder`."""
    network, callbacks = CHECKPOINTS[name]
    pl.seed_everything(0, verbose=False)
    module = Classifier(network)
    trainer = trainer_of(folder, *callbacks(), every_epoch(folder), epochs=4)
    data = DataLoader(TensorDataset(inputs()["images"], torch.arange(24) % 10), 8)
    trainer.fit(module, data, ckpt_path=ckpt)
    return module.eval()


def contents(model: nn.Module) -> str:
    """Return the hash of a network's content: names, dtypes, shapes and bytes."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes())
    return found.hexdigest()


NETWORKS = (*(f"{name}.json" for name in PLANS), *FOLDERS, *(f"{name}.ckpt" for name in CHECKPOINTS))
