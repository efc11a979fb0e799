"""Shared parts of networks of transformers: sizes for their configs, their construction, and random inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import Generator, Tensor, nn

from benchmarks.zoo.networks.network import CLASSES, SAMPLES

VOCABULARY, LENGTH, SIDE = 99, 16, 32
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
TEXT = {**SIZES, **SPECIAL, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
CONVOLUTIONS = {"conv_dim": (32, 32, 32), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2)}
AUDIO = {**SIZES, **CONVOLUTIONS, "num_labels": CLASSES, "num_conv_pos_embeddings": 16, "mask_time_prob": 0.0}
AUDIO |= {"layerdrop": 0.0}  # layers that a step happens to skip have no gradients
AUDIO |= {"num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 3, "vocab_size": 32}
HALVES = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
BOTH = {**HALVES, **SPECIAL, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "decoder_start_token_id": 1}
BOTH |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}


def model_of(name: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    """Return a builder of a model class from a config of these settings."""
    return partial(_built, name, settings)


def _built(name: str, settings: dict[str, Any]) -> nn.Module:
    cls: Any = getattr(transformers, name)
    built: nn.Module = cls(cls.config_class(**settings))
    return built


def tokens(generator: Generator) -> Tensor:
    """Return random tokens without special ones, `(N, T)`."""
    return torch.randint(3, VOCABULARY, (SAMPLES, LENGTH), generator=generator)


def class_labels(generator: Generator) -> Tensor:
    """Return a random class for each sample, `(N,)`."""
    return torch.randint(0, CLASSES, (SAMPLES,), generator=generator)


def masked(generator: Generator) -> dict[str, Tensor]:
    """Return tokens with themselves as labels, as language models take them."""
    drawn = tokens(generator)
    return {"input_ids": drawn, "labels": drawn}


def translated(generator: Generator) -> dict[str, Tensor]:
    """Return tokens for both halves; collators of transformers shift labels into the decoder's inputs."""
    drawn = tokens(generator)
    return {"input_ids": tokens(generator), "decoder_input_ids": drawn.roll(1, 1), "labels": drawn}


def pixels(generator: Generator, side: int = SIDE) -> Tensor:
    """Return random images, `(N, 3, side, side)`."""
    return torch.randn(SAMPLES, 3, side, side, generator=generator)
