"""Networks of transformers by small configs: texts, images, videos, sounds, and several of these together.

`transformers.yaml` lists the networks by their inputs: tokens, classes or shapes of normal numbers by name, or the name
of a function of this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from torch import Generator, Tensor, nn

from benchmarks.zoo.networks.network import CLASSES, SAMPLES, Draw, MakeBatch, Network, below, normal, squares

VOCABULARY, LENGTH, SIDE = 99, 16, 32
_pixels = normal(3, SIDE, SIDE)
Batch = dict[str, Tensor]


def networks() -> list[Network]:
    """Return the suite."""
    return [*_listed("networks"), *rebuilt()]


def rebuilt() -> list[Network]:
    """Return the networks with difficult constructors."""
    return list(_listed("rebuilt"))


def _listed(part: str) -> Iterator[Network]:
    for group in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())[part]:
        inputs, loss = group["inputs"], squares if group.get("loss") else None
        batch = INPUTS[inputs] if isinstance(inputs, str) else partial(_drawn, inputs)
        for name, settings in group["of"].items():
            yield Network(name, partial(_built, settings.pop("class", name), settings), batch, loss)


def _built(name: str, settings: dict[str, Any]) -> nn.Module:
    """Return a model of a class from a config of these settings."""
    cls: Any = getattr(transformers, name)
    built: nn.Module = cls(cls.config_class(**{key: _config(value) for key, value in settings.items()}))
    return built


def _config(value: Any) -> Any:
    """Return an entry of a config; an entry with the name of a config class becomes a config."""
    if not isinstance(value, dict) or "config" not in value:
        return value
    entries = {key: entry for key, entry in value.items() if key != "config"}
    return getattr(transformers, value["config"])(**entries)


def _drawn(inputs: dict[str, Any], generator: Generator) -> Batch:
    kinds: dict[str, Draw] = {"tokens": _tokens, "class": below(CLASSES)}
    return {name: (kinds[what] if isinstance(what, str) else normal(*what))(generator) for name, what in inputs.items()}


def _tokens(generator: Generator) -> Tensor:
    """Return random tokens, none of them special, `(N, T)`."""
    return torch.randint(3, VOCABULARY, (SAMPLES, LENGTH), generator=generator)


def _masked(generator: Generator) -> Batch:
    """Return tokens, labels at the same time, for language models."""
    drawn = _tokens(generator)
    return {"input_ids": drawn, "labels": drawn}


def _translated(generator: Generator) -> Batch:
    """Return tokens for both halves; those of the decoder are shifted labels, as from collators."""
    drawn = _tokens(generator)
    return {"input_ids": _tokens(generator), "decoder_input_ids": drawn.roll(1, 1), "labels": drawn}


def _speech(generator: Generator) -> Batch:
    drawn = _tokens(generator)
    sounds = torch.randn(SAMPLES, 16, 64, generator=generator)
    return {"input_features": sounds, "decoder_input_ids": drawn.roll(1, 1), "labels": drawn}


def _maps(generator: Generator) -> Batch:
    classes = torch.randint(0, CLASSES, (SAMPLES, SIDE, SIDE), generator=generator)
    return {"pixel_values": _pixels(generator), "labels": classes}


def _patch_pairs(generator: Generator) -> Batch:
    patches = torch.randn(SAMPLES, 16, 3 * 8 * 8, generator=generator)
    drawn = {"input_ids": _tokens(generator), "pixel_values": patches}
    mask = torch.ones(SAMPLES, 16, dtype=torch.long)
    return {**drawn, "spatial_shapes": torch.tensor([[4, 4]] * SAMPLES), "pixel_attention_mask": mask}


def _prompts(generator: Generator) -> Batch:
    points = torch.rand(SAMPLES, 1, 2, 2, generator=generator) * SIDE
    return {"pixel_values": _pixels(generator), "input_points": points}


def _seen(length: int, generator: Generator) -> Batch:
    """Return images, and text behind the tokens of an image."""
    marks = torch.full((SAMPLES, length), VOCABULARY - 1)
    text = _tokens(generator).clamp(max=VOCABULARY - 5)
    return {"pixel_values": _pixels(generator), "input_ids": torch.cat([marks, text], 1)}


def _patches(generator: Generator) -> Batch:
    """Return one sample, since rows of patches are no samples: 16 patches of an image for 4 tokens."""
    marks = torch.full((1, 4), VOCABULARY - 1)
    text = _tokens(generator)[:1].clamp(max=VOCABULARY - 5)
    return {
        "input_ids": torch.cat([marks, text], 1),
        "pixel_values": torch.randn(16, 3 * 2 * 8 * 8, generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": torch.cat([torch.ones(1, 4, dtype=torch.long), torch.zeros_like(text)], 1),
    }


INPUTS: dict[str, MakeBatch] = {
    "masked": _masked,
    "translated": _translated,
    "speech": _speech,
    "maps": _maps,
    "patch_pairs": _patch_pairs,
    "prompts": _prompts,
    "seen_4": partial(_seen, 4),
    "seen_16": partial(_seen, 16),
    "patches": _patches,
}
