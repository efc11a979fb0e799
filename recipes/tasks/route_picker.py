"""Training of a router: from features of a prompt to the quality of the answer under each set of removed blocks.

An ordinary LightningModule over features computed once. Labels are the log-likelihoods of right answers under each set
(PuDDing, arXiv 2502.04348, section 4.2); the router reads prompts alone, and prompts are split by their text, so that
no question is in both parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from prunerecover.callbacks.ledger.lightning_corrections import make_leaves_quietly
from prunerecover.language.likelihood import Encoding
from prunerecover.language.questions import Question
from prunerecover.routing.router import Router

RouterObjective = Literal["soft_cross_entropy", "cross_entropy", "mse"]


class RoutePicker(pl.LightningModule):
    """LightningModule that trains a router.

    Args:
        router: Router to train.
        objective: Loss by name: "soft_cross_entropy" against the softmax of the likelihoods, which weighs sets nearly
            as good as the best nearly as much; "cross_entropy" against the best set alone, as a classifier; "mse"
            against the advantage of each set over the static set.
        static: Number of the static set.
        learning_rate: Learning rate of AdamW.
        weight_decay: Weight decay of AdamW.

    Raises:
        ValueError: If the objective is unknown.
    """

    def __init__(
        self,
        router: nn.Module,
        objective: RouterObjective = "soft_cross_entropy",
        static: int = 0,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__()
        if objective not in (known := get_args(RouterObjective)):
            raise ValueError(f"Expected objective to be one of {', '.join(known)}, but got {objective!r}.")
        self.router, self.objective, self.static = router, objective, static
        self.learning_rate, self.weight_decay = learning_rate, weight_decay

    def forward(self, features: Tensor) -> Tensor:
        """Return a score per set, `(N, sets)`."""
        return self.router(features)  # type: ignore[no-any-return]

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of features and likelihoods `(N, sets)`."""
        features, likelihoods = batch
        scores = self(features)
        match self.objective:
            case "soft_cross_entropy":
                loss = F.cross_entropy(scores, likelihoods.softmax(1))
            case "cross_entropy":
                loss = F.cross_entropy(scores, likelihoods.argmax(1))
            case "mse":
                loss = F.mse_loss(scores - scores[:, self.static, None], self._advantage(likelihoods))
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Log the gain in likelihood of right answers by routing, relative to the static set."""
        features, likelihoods = batch
        picked = self(features).argmax(1)
        gain = self._advantage(likelihoods).gather(1, picked[:, None]).mean()
        self.log("val_gain", gain, prog_bar=True, batch_size=len(features), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.router.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)

    def _advantage(self, likelihoods: Tensor) -> Tensor:
        return likelihoods - likelihoods[:, self.static, None]


@torch.no_grad()
def prompt_features(router: Router, model: nn.Module, questions: Sequence[Question], encoding: Encoding) -> Tensor:
    """Return the router's features of each question's prompt, `(N, ...)`, without looking at answers.

    Args:
        router: Router with a method `features`.
        model: Dense language model.
        questions: Questions with the prompts to read.
        encoding: Encoding of text as tokens.
    """
    prompts = [encoding.prompt(question.prompt) for question in questions]
    texts = encoding.tokenizer.batch_decode(prompts, skip_special_tokens=True)  # as in a routed model
    return router.features(model, prompts, texts).cpu().clone()


def as_written_once(prompt: str) -> str:
    """Return the common form of prompts that differ in white space and capitals alone.

    >>> as_written_once(" Is snow  warm? ")
    'is snow warm?'
    """
    return " ".join(prompt.split()).casefold()


def held_out(questions: Sequence[Question], share: float = 0.2, seed: int = 0) -> Tensor:
    """Return a boolean mask of held-out questions, `(N,)`, by a hash of the prompt: equal prompts stay together.

    Args:
        questions: Questions with their prompts.
        share: Approximate share of different prompts to hold out.
        seed: Seed of the hash.
    """

    def drawn(prompt: str) -> float:
        digest = hashlib.sha256(f"{seed}/{as_written_once(prompt)}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64

    return torch.tensor([drawn(question.prompt) < share for question in questions])


def train_router(
    router: nn.Module,
    features: Tensor,
    likelihoods: Tensor,
    apart: Tensor,
    *,
    objective: RouterObjective = "soft_cross_entropy",
    static: int = 0,
    epochs: int = 30,
    learning_rate: float = 1e-3,
    batch_size: int = 32,
    seed: int = 0,
    **trainer: Any,
) -> nn.Module:
    """Train a router, and restore its best state on the held-out questions; changed in place and returned.

    Args:
        router: Router to train.
        features: Features of prompts: see `prompt_features`.
        likelihoods: Log-likelihoods of right answers under each set, `(N, sets)`: see `route_table`.
        apart: Mask of held-out questions: see `held_out`.
        objective: Loss by name; see `RoutePicker`.
        static: Number of the static set.
        epochs: Epochs over the remaining questions.
        learning_rate: Learning rate of AdamW; PuDDing's for BERT is 1e-5.
        batch_size: Prompts at a time.
        seed: Seed of the order.
        trainer: Further arguments of Lightning's Trainer.

    Raises:
        ValueError: If shapes do not fit, the training or held-out part is empty, or likelihoods are not finite.
    """
    if not len(features) == len(likelihoods) == len(apart) or likelihoods.ndim != 2:
        raise ValueError(
            "Expected features, likelihoods and held-out marks of the same questions, but got "
            f"{tuple(features.shape)}, {tuple(likelihoods.shape)} and {tuple(apart.shape)}."
        )
    if not apart.any() or apart.all():
        raise ValueError(
            f"Expected questions to train on and others to choose by, but {int(apart.sum())} of {len(apart)} are held "
            "out. Give more questions."
        )
    _check_training(router, likelihoods, static, epochs)
    make_leaves_quietly()
    picker = RoutePicker(router, objective, static, learning_rate)
    learnt, judged = (TensorDataset(features[part], likelihoods[part]) for part in (~apart, apart))
    with TemporaryDirectory() as folder, isolate_rng():
        torch.manual_seed(seed)
        best = ModelCheckpoint(folder, monitor="val_gain", mode="max")
        usual = {"max_epochs": epochs, "logger": False, "enable_model_summary": False}
        callbacks = [*trainer.pop("callbacks", []), best]
        pl.Trainer(**{**usual, **trainer}, callbacks=callbacks).fit(
            picker, DataLoader(learnt, batch_size, shuffle=True), DataLoader(judged, batch_size)
        )
        picker.load_state_dict(torch.load(best.best_model_path, weights_only=True)["state_dict"])
    return router.eval()


def _check_training(router: nn.Module, likelihoods: Tensor, static: int, epochs: int) -> None:
    """Raise ValueError for invalid sets, likelihoods, static set or epochs."""
    sets = likelihoods.shape[1]
    if getattr(router, "n_sets", sets) != sets:
        raise ValueError(f"Expected likelihoods under the router's {router.n_sets} sets, but got {sets}.")
    if not likelihoods.isfinite().all():
        odd = int((~likelihoods.isfinite()).any(1).sum())
        raise ValueError(
            f"Expected finite likelihoods, but {odd} of {len(likelihoods)} questions have others. Leave these out."
        )
    if not 0 <= static < sets:
        raise ValueError(f"Expected the static set's number from 0 to {sets - 1}, but got {static}.")
    if epochs < 1:
        raise ValueError(f"Expected one epoch or more, but got {epochs}.")
