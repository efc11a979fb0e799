"""LightningModules of users without knowledge of prunerecover, by habit, and tiny data for them."""

from __future__ import annotations

import lightning.pytorch as pl
import timm
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 4


def tiny_vit(name: str = "vit_tiny_patch16_224", **kwargs) -> nn.Module:
    """Return a ViT of timm for 8 x 8 grey images."""
    settings = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 3, "num_heads": 2}
    return timm.create_model(name, **{**settings, "num_classes": CLASSES, **kwargs})


def dataset(n: int = 48) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(n, 1, 8, 8, generator=generator)
    labels = (images[:, 0, :4, :4].mean((1, 2)) > 0).long() + 2 * (images[:, 0, 4:, 4:].mean((1, 2)) > 0).long()
    return TensorDataset(images, labels)


def loader(n: int = 48, batch_size: int = 8, shuffle: bool = True) -> DataLoader:
    return DataLoader(dataset(n), batch_size, shuffle=shuffle)


class Plain(pl.LightningModule):
    """Augmentation, DropPath, AdamW with two parameter groups; the scheduler and optimizer by name."""

    def __init__(self, optimizer: str = "adamw", scheduler: str = "cosine", epochs: int = 4, **vit) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = tiny_vit(**{"drop_path_rate": 0.2, **vit})
        self.kind, self.schedule, self.epochs = optimizer, scheduler, epochs

    def loss(self, batch):
        images, labels = batch
        images = images + 0.1 * torch.randn_like(images)
        return F.cross_entropy(self.net(images), labels)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self.net(batch[0])
        self.log("val_loss", F.cross_entropy(logits, batch[1]))
        self.log("val_acc", (logits.argmax(1) == batch[1]).float().mean())

    def test_step(self, batch, batch_idx):
        self.log("test_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])

    def configure_optimizers(self):
        matrices = [p for p in self.parameters() if p.ndim > 1]
        vectors = [p for p in self.parameters() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
        make = {"adamw": torch.optim.AdamW, "sgd": lambda g, lr: torch.optim.SGD(g, lr, momentum=0.9)}[self.kind]
        optimizer = make(groups, 1e-2)
        if self.schedule == "onecycle":
            steps = self.trainer.estimated_stepping_batches
            one_cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": one_cycle, "interval": "step"}}
        if self.schedule == "plateau":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)
        return {"optimizer": optimizer, "lr_scheduler": cosine}


class Unaugmented(Plain):
    """Sees the same images in every epoch."""

    def loss(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1])


class Manual(Plain):
    """Manual optimization, and logging before the network is called."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.steps = 0

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        self.log("seen", float(batch_idx))
        loss = self.loss(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.steps += 1

    def on_train_epoch_end(self):
        self.lr_schedulers().step()


class TwoOptimizers(Plain):
    """Manual optimization with an optimizer for the blocks and another for the rest, toggled."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            self.toggle_optimizer(optimizer)
            loss = self.loss(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self):
        blocks = list(self.net.blocks.parameters())
        rest = [p for p in self.parameters() if not any(p is q for q in blocks)]
        return [torch.optim.SGD(blocks, 1e-2), torch.optim.AdamW(rest, 1e-3)]


class BuiltLate(Plain):
    """Network built in configure_model."""

    def __init__(self) -> None:
        super().__init__()
        self.net = None

    def configure_model(self):
        if self.net is None:
            self.net = tiny_vit(drop_path_rate=0.2)


class Compiled(Plain):
    """Compiles its network in place."""

    def __init__(self) -> None:
        super().__init__()
        self.net.compile(backend="eager")


class Parts(Plain):
    """Calls parts of its network, never the whole."""

    def loss(self, batch):
        return self.net.head(self.net.forward_features(batch[0]).mean(1)).square().mean()


class TwoNetworks(Plain):
    """Two candidates for pruning, of which a single one trains."""

    def __init__(self) -> None:
        super().__init__()
        self.other = tiny_vit(depth=2)

    def loss(self, batch):
        images, labels = batch
        return F.cross_entropy(self.net(images) + self.other(images), labels)


class Wrapped(pl.LightningModule):
    """Transformers model with the loss computed from keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        from cases.models.tiny import tiny_llama

        self.lm = tiny_llama()

    def training_step(self, batch, batch_idx):
        (tokens,) = batch
        return self.lm(input_ids=tokens, labels=tokens).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


TEXT_SAMPLES = 24


def tokens(n: int = TEXT_SAMPLES) -> DataLoader:
    """Return batches of a tensor of token ids."""
    ids = torch.randint(3, 61, (n, 9), generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(ids), 8, shuffle=True)


class WrappedCompiled(Plain):
    """Wrapper of torch.compile kept as the attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.compile(self.net, backend="eager")


class NamedGroups(Plain):
    """Optimizer with parameters by name."""

    def configure_optimizers(self):
        named = list(self.named_parameters())
        groups = [{"params": [(n, p) for n, p in named if (p.ndim > 1) is many]} for many in (True, False)]
        return torch.optim.AdamW(groups, 1e-2)


class Filtered(Plain):
    """Optimizer over the trainable parameters at construction."""

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], 1e-2)


class OwnHooks(Plain):
    """Custom checkpoint hooks, with further content in the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def on_save_checkpoint(self, checkpoint):
        self.calls.append("save")
        checkpoint["mine"] = {"epochs": self.current_epoch}

    def on_load_checkpoint(self, checkpoint):
        assert checkpoint["mine"]["epochs"] >= 0
        self.calls.append("load")


class Watched(Plain):
    """Counts in its training step; BatchNorm in front of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.started, self.losses, self.seen = 0, 0, []

    def loss(self, batch):
        self.started += 1
        logits = self.net(self.norm(batch[0]))
        self.losses += 1
        return F.cross_entropy(logits, batch[1])


class BatchOnly(Plain):
    """A training step without the batch's number, decorated."""

    @torch.enable_grad()
    def training_step(self, batch):
        return self.loss(batch)


class Iterating(Plain):
    """Training step with a loop over fetched batches."""

    def training_step(self, dataloader_iter):
        batch, _, _ = next(dataloader_iter)
        loss = self.loss(batch)
        self.log("train_loss", loss, batch_size=len(batch[0]))
        return loss


class ByName(Plain):
    """Trained on several dataloaders at once, by name."""

    def loss(self, batch):
        return super().loss(batch["a"]) + super().loss(batch["b"])


class InTurn(Plain):
    """Trained on a list of dataloaders."""

    def loss(self, batch):
        return super().loss(batch[0]) + super().loss(batch[1])


class Adversarial(Plain):
    """Manual optimization with raw optimizers, and a backward pass before the network is called."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.encoder = nn.Conv2d(1, 1, 1)

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers(use_pl_optimizer=False)
        first.zero_grad()
        self.encoder(batch[0]).square().mean().backward()
        first.step()
        second.zero_grad()
        F.cross_entropy(self.net(self.encoder(batch[0])), batch[1]).backward()
        second.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(self.encoder.parameters(), 1e-2), torch.optim.AdamW(self.net.parameters(), 1e-3)]
