"""What a search over units of a family keeps of a model's runs: bounded, and the same answers without."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from functools import cache
from typing import Any

import pytest
from cases.engine import batches_of, build

from prunerecover import Plan, plan_depth
from prunerecover.calibration import hidden_states


@cache
def all_kept(search: Any, **remove: int) -> Plan:
    return plan_depth(build("llama"), remove=remove, batches=batches_of("llama", count=4), search=search)


@pytest.mark.parametrize(("remove", "search"), [({"attention": 1}, "exact"), ({"block": 2}, "greedy")])
@pytest.mark.parametrize("room", [0, 12000])  # none, and enough for a few batches
def test_nothing_kept_finds_the_same(
    room: int, remove: dict[str, int], search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = all_kept(search, **remove)
    monkeypatch.setattr(hidden_states, "MOST_KEPT", room)
    found = plan_depth(build("llama"), remove=remove, batches=batches_of("llama", count=4), search=search)
    assert found.removed == wanted.removed
    assert [edit.op for edit in found.edits] == [edit.op for edit in wanted.edits]
    assert found.evidence["divergence"] == pytest.approx(wanted.evidence["divergence"], rel=1e-4)


PEAK = """
    import resource, sys
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from prunerecover import plan_depth
    from prunerecover.calibration import hidden_states

    hidden_states.MOST_KEPT = 1 << 22
    torch.manual_seed(0)
    shape = dict(hidden_size=128, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4)
    network = LlamaForCausalLM(LlamaConfig(vocab_size=4000, num_key_value_heads=4, **shape)).eval()
    batches = [{"input_ids": ids} for ids in torch.randint(4000, (int(sys.argv[1]), 4, 128))]
    plan_depth(network, remove={sys.argv[2]: 1}, batches=batches, search="greedy")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["block", "attention"])
def test_memory_does_not_grow_with_the_number_of_tokens(kind: str) -> None:
    """Dense outputs of 80 batches are 164 MB, and each list of hidden states of all their tokens 21 MB."""
    few, many = (peak_of(count, kind) for count in (10, 80))
    assert many - few < 40 << 10


def peak_of(count: int, kind: str) -> int:
    """KiB at the peak of a search over so many batches."""
    command = [sys.executable, "-c", textwrap.dedent(PEAK), str(count), kind]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return int(result.stdout.split()[-1])
