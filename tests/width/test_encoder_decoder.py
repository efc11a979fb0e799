"""Width of an encoder-decoder on batches whose labels its decoder reads."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

from prunerecover import Budget, apply_plan, plan_width

SIZES = {"vocab_size": 32, "d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}


def t5() -> nn.Module:
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES, decoder_start_token_id=0)).eval()


@pytest.mark.slow
def test_labels_make_the_inputs_of_its_decoder() -> None:
    network, numbers = t5(), torch.Generator().manual_seed(1)
    sizes = {"input_ids": (4, 7), "labels": (4, 5)}
    batches = [{n: torch.randint(3, 32, size, generator=numbers) for n, size in sizes.items()} for _ in range(4)]
    plan = plan_width(network, Budget(params=0.2), batches=batches)
    before = sum(p.numel() for p in network.parameters())
    apply_plan(network, plan)
    assert sum(p.numel() for p in network.parameters()) <= 0.81 * before
    assert network(**batches[0]).loss.isfinite()
