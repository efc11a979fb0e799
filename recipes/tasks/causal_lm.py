"""Causal language model around any model of transformers: next-token loss, perplexity, and multiple-choice accuracy.

An ordinary LightningModule without knowledge of pruning. Batches are mappings of `input_ids`, `labels` and, for padded
sequences, `attention_mask`, each `(N, T)`; labels of -100 are not scored, and the model shifts the labels. Evaluation
batches of `ChoiceData`, with all answers of each question, are scored by the likeliest answer. AdamW under a cosine
with linear warmup, as in all recipes. Generation is the network's: `module.model.generate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection

from prunerecover.importance.measuring.losses import IGNORED, token_log_likelihoods
from prunerecover.language.accuracy import score_choices
from prunerecover.recipes.networks.model_names import from_pretrained
from prunerecover.recipes.tasks.evaluated_module import EvaluatedModule

TokenBatch = Mapping[str, Tensor]
CHOICE_METRICS = ("loss", "acc", "acc_norm")
Weights = Literal["float32", "bfloat16", "float16", "auto"]


class MeanPerplexity(MeanMetric):
    """Perplexity of all tokens, exp(mean loss), from the mean loss of each batch and its number of tokens.

    torchmetrics' `Perplexity` needs all probabilities at once, `(N, T, V)`, which the models' loss never computes.
    """

    def compute(self) -> Tensor:
        """Return exp(mean)."""
        return super().compute().exp()


class CausalLM(EvaluatedModule):
    """Train and evaluate a causal language model; the network is `self.model`.

    Args:
        model: Folder as saved by transformers, or a hub id.
        pretrained: Whether to load the weights; False makes a new network of the model's configuration.
        dtype: Type of the weights: `float32`, `bfloat16`, `float16`, or `auto` for the stored type.
        model_kwargs: Further arguments of `from_pretrained`, for example `{"attn_implementation": "sdpa"}`; entries of
            the configuration are replaced, such as `{"num_hidden_layers": 4}` of a new network.
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of parameters with two or more dimensions.
        warmup_epochs: Length of the linear warmup, in epochs; may be a fraction.
        min_learning_rate: Learning rate at the end of the cosine.

    Raises:
        ValueError: If the model or dtype does not exist.
    """

    def __init__(
        self,
        model: str = "HuggingFaceTB/SmolLM2-135M",
        pretrained: bool = True,
        dtype: Weights = "float32",
        model_kwargs: dict[str, Any] | None = None,
        learning_rate: float = 1e-4,
        weight_decay: float = 0.0,
        warmup_epochs: float = 0.0,
        min_learning_rate: float = 0.0,
    ) -> None:
        super().__init__(learning_rate, weight_decay, warmup_epochs, min_learning_rate)
        self.save_hyperparameters()
        self.model = _create(model, pretrained, dtype, model_kwargs or {}).train()  # from_pretrained: evaluation mode
        metrics = MetricCollection({"loss": MeanMetric(), "perplexity": MeanPerplexity()})
        self.val_metrics, self.test_metrics = metrics.clone(prefix="val_"), metrics.clone(prefix="test_")
        choices = MetricCollection({name: MeanMetric() for name in CHOICE_METRICS}, compute_groups=False)
        self.val_choices, self.test_choices = choices.clone(prefix="val_"), choices.clone(prefix="test_")

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the logits `(N, T, V)` of the next token at each position."""
        return self.model(input_ids, attention_mask=attention_mask, use_cache=False).logits  # type: ignore[no-any-return]

    def training_step(self, batch: TokenBatch, batch_idx: int) -> Tensor:
        """Return the model's loss, averaged over the tokens."""
        loss = self._loss(batch)
        self.log("train_loss", loss, prog_bar=True, batch_size=len(batch["labels"]))
        return loss

    def predict_step(self, batch: TokenBatch, batch_idx: int) -> Tensor:
        """Return the likeliest next token at each position, `(N, T)`."""
        return self(batch["input_ids"], batch.get("attention_mask")).argmax(-1)  # type: ignore[no-any-return]

    def _loss(self, batch: TokenBatch) -> Tensor:
        return self.model(**batch, use_cache=False).loss  # type: ignore[no-any-return]

    def evaluate(self, batch: TokenBatch, stage: str, where: tuple[int, int]) -> None:
        """Log loss and perplexity, or for questions loss, acc and acc_norm."""
        if "question" in batch:
            self._evaluate_choices(batch, getattr(self, f"{stage}_choices"), where)
            return
        metrics: MetricCollection = getattr(self, f"{stage}_metrics")
        count = self.counted(len(batch["labels"]), where)
        if count:
            batch = {name: values[:count] for name, values in batch.items()}
        loss = self._loss(batch)  # also for a batch counted elsewhere: a sharded model needs all processes
        tokens = (batch["labels"][:, 1:] != IGNORED).sum()
        if count and tokens:
            metrics.update(loss, tokens)
        self.log_dict(metrics, prog_bar=True, batch_size=len(batch["labels"]))

    def _evaluate_choices(self, batch: TokenBatch, metrics: MetricCollection, where: tuple[int, int]) -> None:
        logits = self(batch["input_ids"], batch["attention_mask"])
        scores = score_choices(*token_log_likelihoods(logits, batch["labels"]), batch)
        size = len(scores["loss"])
        count = self.counted(size, where)
        for name in CHOICE_METRICS if count else ():
            metrics[name].update(scores[name][:count])
        self.log_dict(metrics, prog_bar=True, batch_size=size)


def _create(name: str, pretrained: bool, dtype: Weights, kwargs: dict[str, Any]) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    if dtype not in get_args(Weights):
        raise ValueError(f"Expected dtype to be one of {', '.join(get_args(Weights))}, but got {dtype!r}. Use float32.")
    if pretrained:
        return from_pretrained(AutoModelForCausalLM.from_pretrained, name, dtype=dtype, **kwargs)  # type: ignore[no-any-return]
    config = from_pretrained(AutoConfig.from_pretrained, name, **kwargs)
    stored = {} if dtype == "auto" else {"dtype": dtype}
    return AutoModelForCausalLM.from_config(config, **stored)  # type: ignore[no-any-return]
