"""Language models of the benchmarks: stories260K, and Llamas with random weights, sufficient for costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from benchmarks.data.real import data_root
from prunerecover import Plan, PlanSet, RoutedCausalLM
from prunerecover.model.evaluation import device_of
from prunerecover.routing.router import PrefixRouter
from prunerecover.surgery.merging import block_removals
from prunerecover.surgery.provenance import plan_for

STORIES = "stories260K"


def stories260k() -> tuple[nn.Module, Any]:
    """Return the network and the tokenizer."""
    folder = data_root() / "models" / STORIES
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def random_llama(hidden: int, device: torch.device, dtype: torch.dtype = torch.float32, **sizes: Any) -> Any:
    """Return a Llama of a hidden size and further config entries."""
    torch.manual_seed(0)
    with device:
        return AutoModelForCausalLM.from_config(LlamaConfig(hidden_size=hidden, **sizes), dtype=dtype).eval()


def without_blocks(network: nn.Module, blocks: Sequence[int]) -> Plan:
    """Return the plan without some blocks, which leave nothing."""
    return plan_for(network, block_removals(network, blocks), method="by hand")


def routed(network: Any, sets: Sequence[Sequence[int]], prefix: bool = True, **how: Any) -> RoutedCausalLM:
    """Return a network routed between sets of removed blocks, by a random prefix router if wanted."""
    torch.manual_seed(0)
    router = PrefixRouter(network.config.hidden_size, len(sets)).eval().to(device_of(network)) if prefix else None
    plans = PlanSet(names=tuple("ab"), plans=tuple(without_blocks(network, blocks) for blocks in sets))
    return RoutedCausalLM(network, plans, router, **how)


def weight_bytes(network: Any) -> int:
    """Return the bytes of the weights read in a decoding step: all but the embedding table."""
    table = network.get_input_embeddings().weight
    return sum(p.numel() * p.element_size() for p in network.parameters() if p is not table)
