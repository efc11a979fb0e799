"""The exact search finds what trying every block at each step finds, and runs a part of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.engine import batches_of, build, output_of
from cases.models.decoders import DECODERS
from cases.models.tiny import BUILD, tiny_inputs
from cases.models.tiny import DECODERS as FIRST
from cases.sampling import one_in
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from prunerecover import find_units, plan_depth
from prunerecover.calibration.samples import split_batches
from prunerecover.divergence.measure import mean_divergence
from prunerecover.model.copies import share_copy
from prunerecover.plan.edits import Remove
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.merging import block_removals


def llama(seed: int, blocks: int) -> nn.Module:
    torch.manual_seed(seed)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=blocks, **shape)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.ndim > 1 else 1)  # else blocks hardly change anything
    return model


def batches(count: int, seed: int) -> list[Any]:
    ids = torch.randint(64, (count, 4, 12), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": some} for some in ids]


def naive(model: nn.Module, data: list[Any], count: int, kind: str = "block") -> list[str]:
    """Try every unit that is left, in the whole network, and take out the one that is missed least."""
    samples = split_batches(data, torch.device("cpu")).all_samples
    names = [unit.name for unit in find_units(model, kinds=(kind,))]
    dense = [output_of(model, batch) for batch in samples]
    gone: list[int] = []
    for _ in range(count):
        found = {}
        for number in (i for i in range(len(names)) if i not in gone):
            pruned = share_copy(model)
            now = [*gone, number]
            whole = kind == "block"
            apply_edits(
                pruned, block_removals(model, now) if whole else [Remove(unit=names[i], kind=kind) for i in now]
            )
            found[number] = mean_divergence(samples, dense, (output_of(pruned, batch) for batch in samples))
        gone.append(min(found, key=lambda number: found[number]))
    return [names[number] for number in gone]


def exact(model: nn.Module, data: list[Any], count: int, kind: str = "block") -> list[str]:
    plan = plan_depth(model, remove={kind: count}, batches=data, search="exact", replace="zero")
    return [step["unit"] for step in plan.evidence["order"]]


@pytest.mark.parametrize("seed", one_in(2, range(4)))
def test_the_set_is_that_of_exhaustive_greedy(seed: int) -> None:
    model, data = llama(seed, 7), batches(4, seed)
    assert exact(model, data, 3) == naive(model, data, 3)


@pytest.mark.parametrize("name", one_in(4, [*FIRST, *DECODERS]))
def test_the_set_is_that_of_exhaustive_greedy_in_every_family(name: str) -> None:
    model = BUILD[name]() if name in FIRST else DECODERS[name].build()
    data = [tiny_inputs(name, batch=4, seed=seed) for seed in range(4)]
    assert exact(model, data, 3) == naive(model, data, 3)


def test_attentions_go_alike() -> None:
    model, data = build("timm"), batches_of("timm")
    assert exact(model, data, 3, "attention") == naive(model, data, 3, "attention")


def test_the_first_unit_has_the_least_importance() -> None:
    plan = plan_depth(llama(0, 7), remove={"block": 1}, batches=batches(8, 0), search="exact", replace="zero")
    found = plan.evidence["importance"]
    assert len(found) == 7
    (first,) = plan.removed["block"]
    assert min(found, key=found.__getitem__) == first
