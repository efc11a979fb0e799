"""Sizes of Llamas, and the memory that planning takes, computed from the shapes alone: no weight is made."""

from __future__ import annotations

from collections.abc import Mapping

from accelerate import init_empty_weights
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.language.large_models_run import SIZES, config_of
from prunerecover.calibration.moments import LARGEST
from prunerecover.display.markdown import table
from prunerecover.library.library import ON_TOP
from prunerecover.library.variants import SCORED

KNOWN = {
    "Llama 2 7B": LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, vocab_size=32000),
    "Llama 3 70B": LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
    ),
}
SUM = 8  # bytes of an entry of the moments
HELD_OUT = 1 / 4  # of the samples
GB = 1e9


def moments(config: LlamaConfig, *, attention: bool = False) -> int:
    """Return the bytes of the moments of one walk: of the inputs of each branch, and of each last linear.

    Args:
        config: Shape of the network.
        attention: Whether attentions may get smaller, besides MLPs.
    """
    hidden, neurons = config.hidden_size, config.intermediate_size
    mlp = _regression(hidden, hidden) + _regression(neurons, hidden)
    branches = mlp + (2 * _regression(hidden, hidden) if attention else 0)
    return config.num_hidden_layers * branches


def _regression(inputs: int, outputs: int) -> int:
    """Return the bytes of sums for a regression; without products of inputs, where there are too many."""
    inputs = inputs if inputs <= LARGEST else 0
    return SUM * (1 + inputs + outputs + inputs * inputs + inputs * outputs)


def passes(config: LlamaConfig) -> float:
    """Return the passes of all samples that scores of the variants of MLPs take, alone and on top of choices."""
    replacements = 2 if config.hidden_size <= LARGEST else 1
    variants = config.num_hidden_layers * (len(SCORED) + replacements)
    return (1 + ON_TOP) * variants * HELD_OUT / 2  # half of the network is behind a variant


def sizes(config: LlamaConfig, bytes_each: int) -> Mapping[str, float]:
    """Return the sizes of a network in GB.

    Args:
        config: Shape.
        bytes_each: Bytes of a weight.
    """
    with init_empty_weights():
        model = LlamaForCausalLM(config)
    whole, block = (sum(p.numel() for p in one.parameters()) for one in (model, model.model.layers[0]))
    return {
        "parameters": whole / GB,
        "weights": bytes_each * whole / GB,
        "block": bytes_each * block / GB,
        "largest": bytes_each * max(p.numel() for p in model.parameters()) / GB,
        "moments": moments(config) / GB,
        "with_attention": moments(config, attention=True) / GB,
        "passes": passes(config),
    }


def computed() -> str:
    """Render the sizes of all shapes."""
    shapes = {**{f"{size}, float32": (config_of(size), 4) for size in SIZES}}
    shapes |= {f"{name}, bfloat16": (config, 2) for name, config in KNOWN.items()}
    lines = []
    for name, (config, each) in shapes.items():
        own = sizes(config, each)
        lines.append(
            (
                name,
                f"{own['parameters']:.2f}",
                f"{own['weights']:.1f}",
                f"{own['block']:.3f}",
                f"{own['largest']:.2f}",
                f"{own['moments']:.2f}",
                f"{own['with_attention']:.2f}",
                f"{own['passes']:.0f}",
            )
        )
    head = ("model", "10^9 parameters", "weights", "a block", "largest tensor", "moments", "with attentions", "passes")
    return table(head, lines)
