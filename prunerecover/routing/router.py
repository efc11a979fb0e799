"""Routers: choice of a set of removed blocks from the prompt alone.

`PrefixRouter` reads the hidden states of the prompt behind the first blocks of the language model; `EncoderRouter` is
the router of PuDDing (arXiv 2502.04348, section 4.2), a separate text encoder (BERT in the paper). Both give a score
per set, higher is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from prunerecover.families.describe import container_of
from prunerecover.language.likelihood import padded
from prunerecover.model.batches import ModelInputs
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.evaluation import device_of, evaluating
from prunerecover.model.paths import unwrap

WEIGHTS, ENCODER = "router.safetensors", "encoder"
TOGETHER = 32  # prompts per batch
HIDDEN = 128  # width of the head; about 1 M parameters for a model of width 4,096
DROPOUT = 0.7  # a thousand prompts are few for as many parameters


class Router(Protocol):
    """Scores of sets from the features of prompts."""

    n_sets: int

    def features(self, model: nn.Module, prompts: Sequence[Sequence[int]], texts: Sequence[str]) -> Tensor:
        """Return the features of each prompt, `(N, F)`.

        Args:
            model: Dense language model.
            prompts: Tokens of each prompt.
            texts: Text of each prompt.
        """

    def __call__(self, features: Tensor) -> Tensor:
        """Return a score per set, `(N, sets)`."""

    def save(self, folder: Path) -> dict[str, Any]:
        """Write weights into an existing folder, and return the settings to restore the router: JSON primitives."""


class PrefixRouter(nn.Module):
    """Router on the mean and the last of the hidden states behind the first blocks of the model.

    Args:
        width: Width of the hidden states, C.
        n_sets: Number of sets.
        blocks: Number of blocks that the prompt runs through, from 1 to the shared prefix of all sets.
        hidden: Width of the hidden layer of the head.

    Raises:
        ValueError: If there are fewer than two sets, or no blocks.
    """

    def __init__(self, width: int, n_sets: int, blocks: int = 2, hidden: int = HIDDEN) -> None:
        super().__init__()
        check_sets(n_sets)
        if blocks < 1:
            raise ValueError(
                f"Expected one block or more for the prompt to run through, but got {blocks}. Plan sets whose first "
                "blocks stay (shared_prefix), or use an EncoderRouter."
            )
        self.width, self.n_sets, self.blocks, self.hidden = width, n_sets, blocks, hidden
        self.head = nn.Sequential(
            nn.LayerNorm(2 * width, elementwise_affine=False),
            nn.Linear(2 * width, hidden),
            nn.GELU(),
            nn.Dropout(DROPOUT),
            nn.Linear(hidden, n_sets),
        )

    def features(self, model: nn.Module, prompts: Sequence[Sequence[int]], texts: Sequence[str] = ()) -> Tensor:
        """Return mean and last hidden state of each prompt, `(N, 2 C)`; prompts of equal length run together.

        Raises:
            ValueError: If the model has fewer blocks than the router reads.
        """
        model = unwrap(model)
        runner = BlockRunner(model, container_of(model))
        if self.blocks > len(runner.blocks):
            raise ValueError(
                f"Expected a model of {self.blocks} blocks or more, which the router reads, but this "
                f"{type(model).__name__} has {len(runner.blocks)}. Make the router with fewer blocks."
            )
        found: dict[int, Tensor] = {}
        with evaluating(model) if model.training else torch.no_grad():
            for numbers in _of_one_length(prompts):
                ids = torch.tensor([list(prompts[i]) for i in numbers], device=device_of(model))
                inputs = ModelInputs(kwargs={"input_ids": ids})
                states = runner.advance(inputs, 0, None, self.blocks).float()
                pooled = torch.cat([states.mean(1), states[:, -1]], 1)
                found |= dict(zip(numbers, pooled.clone(), strict=True))
        return torch.stack([found[i] for i in range(len(prompts))])

    def forward(self, features: Tensor) -> Tensor:
        """Return a score per set, `(N, sets)`, from features `(N, 2 C)`.

        Raises:
            ValueError: If the features are from a model of another width.
        """
        if features.shape[-1] != 2 * self.width:
            raise ValueError(
                f"Expected features of {2 * self.width} numbers, as of a model of width {self.width}, but got "
                f"{features.shape[-1]}. Train the router on this model."
            )
        weight = next(self.head.parameters())
        return self.head(features.to(weight.device, weight.dtype))  # type: ignore[no-any-return]

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the weights of the head."""
        save_file(self.state_dict(), folder / WEIGHTS)
        return {"width": self.width, "n_sets": self.n_sets, "blocks": self.blocks, "hidden": self.hidden}

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> PrefixRouter:
        """Restore a router written by `save`."""
        with torch.device("meta"):
            router = cls(**settings)
        _fill(router, folder / WEIGHTS)
        return router.eval()


class EncoderRouter(nn.Module):
    """Router with a separate text encoder: the state of the first token, as in BERT.

    Args:
        encoder: Folder of transformers, or hub id, with weights and tokenizer.
        n_sets: Number of sets.
        length: Maximum number of tokens to read, the last tokens of a prompt.
        local_files_only: Whether to fetch nothing from the hub.

    Raises:
        ValueError: If there are fewer than two sets.
    """

    def __init__(self, encoder: str, n_sets: int, length: int = 512, *, local_files_only: bool = False) -> None:
        from transformers import AutoModel, AutoTokenizer

        super().__init__()
        check_sets(n_sets)
        self.n_sets, self.length = n_sets, length
        how = {"trust_remote_code": False, "local_files_only": local_files_only}
        self.encoder = AutoModel.from_pretrained(encoder, **how)
        self.tokenizer = AutoTokenizer.from_pretrained(encoder, truncation_side="left", **how)
        self.head = nn.Linear(int(self.encoder.config.hidden_size), n_sets)

    def features(self, model: nn.Module, prompts: Sequence[Sequence[int]], texts: Sequence[str] = ()) -> Tensor:
        """Return the encoder's tokens of each prompt, `(N, 2, T)`: ids and mask, for `forward`.

        Raises:
            ValueError: If the texts are missing.
        """
        if len(texts) != len(prompts):
            raise ValueError(
                f"Expected the text of each of {len(prompts)} prompts, which this router reads, but got {len(texts)}. "
                "Pass the language model's own tokenizer: RoutedCausalLM(..., tokenizer=tokenizer)."
            )
        length = min(self.length, int(self.tokenizer.model_max_length))
        read = padded(self.tokenizer(list(texts), truncation=True, max_length=length)["input_ids"], self.tokenizer)
        return torch.stack([read["input_ids"], read["attention_mask"]], 1)

    def forward(self, features: Tensor) -> Tensor:
        """Return a score per set, `(N, sets)`, from tokens `(N, 2, T)`."""
        ids, mask = features.to(self.head.weight.device).unbind(1)
        state = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
        return self.head(state)  # type: ignore[no-any-return]

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the weights of the head, and the encoder in the format of transformers."""
        save_file(self.head.state_dict(), folder / WEIGHTS)
        self.encoder.save_pretrained(folder / ENCODER)
        self.tokenizer.save_pretrained(folder / ENCODER)
        return {"n_sets": self.n_sets, "length": self.length}

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> EncoderRouter:
        """Restore a router written by `save`."""
        router = cls(str(folder / ENCODER), **settings, local_files_only=True)
        _fill(router.head, folder / WEIGHTS)
        return router.eval()


ROUTERS: dict[str, type[PrefixRouter] | type[EncoderRouter]] = {"prefix": PrefixRouter, "encoder": EncoderRouter}


def _fill(module: nn.Module, path: Path) -> None:
    """Load the weights of a file into a module, in single precision; shapes are checked first."""
    module.load_state_dict(load_file(path), assign=True)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(torch.float32, copy=True)


def _of_one_length(prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield the numbers of prompts of equal length, batch by batch: no padding is needed."""
    for length in sorted(set(map(len, prompts))):
        numbers = [i for i, prompt in enumerate(prompts) if len(prompt) == length]
        yield from (numbers[i : i + TOGETHER] for i in range(0, len(numbers), TOGETHER))


def check_sets(n_sets: int) -> None:
    """Raise ValueError for fewer than two sets."""
    if n_sets < 2:
        raise ValueError(f"Expected two sets or more to choose from, but got {n_sets}. Apply the only plan instead.")


def kind_of(router: nn.Module) -> str:
    """Return the name of the class of a router, for files.

    Raises:
        TypeError: If the class cannot be saved.
    """
    for name, cls in ROUTERS.items():
        if type(router) is cls:
            return name
    raise TypeError(f"Expected a router among {', '.join(ROUTERS)}, but got {type(router).__name__}.")
