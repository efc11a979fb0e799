"""Groups of networks larger than memory, found on the meta device: seconds of processor time.

Finding groups needs no weights, and none are made. Each network has a process of its own.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.trial import Row
from prunerecover.width.groups.discovery import find_groups

TOKENS = 16  # of the example
NETWORKS: dict[str, dict[str, Any]] = {
    "Llama-2-7B": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    }
}


def build(settings: dict[str, Any]) -> nn.Module:
    """Return a Llama of transformers without weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        network: nn.Module = LlamaForCausalLM(LlamaConfig(**settings))
    return network.eval()


def measured(name: str) -> Row:
    """Return the row of a network: parameters, numbers of groups, and seconds of finding the groups."""
    network = build(NETWORKS[name])
    example = {"input_ids": torch.zeros(1, TOKENS, dtype=torch.long, device="meta")}
    started = time.process_time()
    found = find_groups(network, example)
    seconds = time.process_time() - started
    groups = {kind: sum(group.kind == kind for group in found.groups) for kind in ("head", "neuron")}
    params = sum(parameter.numel() for parameter in network.parameters())
    return {"name": name, "params": params, "groups": groups, "find_groups_seconds": round(seconds, 1)}
