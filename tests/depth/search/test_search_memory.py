"""Memory of a search over units of a family: bounded, with the same answers as without."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from cases.depth.memory import peaks_of
from cases.engine import batches_of, build

from prunerecover import Plan, plan_depth
from prunerecover.depth.layers import prefix


@cache
def all_kept(search: Any, **remove: int) -> Plan:
    return plan_depth(build("llama"), remove=remove, batches=batches_of("llama", count=4), search=search)


@pytest.mark.slow
@pytest.mark.parametrize(("remove", "search"), [({"attention": 1}, "exact"), ({"block": 2}, "greedy")])
@pytest.mark.parametrize("room", [0, 12000])  # none, and enough for a few batches
def test_nothing_kept_finds_the_same(
    room: int, remove: dict[str, int], search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = all_kept(search, **remove)
    monkeypatch.setattr(prefix, "MOST_KEPT", room)
    found = plan_depth(build("llama"), remove=remove, batches=batches_of("llama", count=4), search=search)
    assert found.removed == wanted.removed
    assert [edit.op for edit in found.edits] == [edit.op for edit in wanted.edits]
    assert found.evidence["divergence"] == pytest.approx(wanted.evidence["divergence"], rel=1e-4)


PEAK = """
    import resource
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from prunerecover import plan_depth
    from prunerecover.depth.layers import prefix

    prefix.MOST_KEPT = 1 << 22
    torch.manual_seed(0)
    shape = dict(hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    network = LlamaForCausalLM(LlamaConfig(vocab_size=2000, num_key_value_heads=4, **shape)).eval()
    for count in (4, 24):
        batches = [{"input_ids": ids} for ids in torch.randint(2000, (count, 4, 128))]
        for kind in ("block", "attention"):
            plan_depth(network, remove={kind: 1}, batches=batches, search="greedy")
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_tokens() -> None:
    """Dense outputs of 24 batches are 98 MB, and each list of hidden states of all their tokens 6 MB."""
    few, many = peaks_of(PEAK)
    assert many - few < 40 << 10
