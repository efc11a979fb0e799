"""One contiguous run of blocks: the nearest by an independent computation, or the one that changes the output least."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_llama
from cases.sampling import one_in
from torch import Tensor, nn

from prunerecover import Budget, Plan, plan_depth
from prunerecover.model.hooks import recording

BLOCKS = 6
LONGEST = 9


def network(seed: int) -> nn.Module:
    """A Llama whose blocks add much or little to the stream, as drawn."""
    model = tiny_llama(num_hidden_layers=BLOCKS)
    scales = torch.rand(BLOCKS, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for layer, scale in zip(model.model.layers, scales, strict=True):
            layer.self_attn.o_proj.weight *= scale**2
            layer.mlp.down_proj.weight *= scale**2
    return model.eval()


def padded(left: bool) -> dict[str, Tensor]:
    """Texts of different lengths, padded on one side."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 60, (12, LONGEST), generator=generator)
    lengths = torch.randint(3, LONGEST + 1, (12, 1), generator=generator)
    places = torch.arange(LONGEST).expand(12, -1)
    mask = (places >= LONGEST - lengths if left else places < lengths).long()
    return {"input_ids": ids, "attention_mask": mask}


def streams(model: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    """What enters each block, and what enters the final norm, `(N, T, C)`."""
    parts = {str(number): part for number, part in enumerate([*model.model.layers, model.model.norm])}
    with recording(parts) as seen, torch.no_grad():
        model(**batch)
    return [seen[f"{name}.in"].double() for name in parts]


def angle(before: Tensor, after: Tensor, mask: Tensor) -> float:
    found = []
    for one, other, own in zip(before, after, mask, strict=True):
        last = int(own.nonzero().max())
        cosine = (one[last] @ other[last]) / (one[last].norm() * other[last].norm())
        found.append(math.acos(float(cosine.clamp(-1, 1))) / math.pi)
    return sum(found) / len(found)


def turned(before: Tensor, after: Tensor, mask: Tensor) -> float:
    return float(1 - torch.cosine_similarity(before, after, dim=-1)[mask.bool()].mean())


def planned(model: nn.Module, batch: dict[str, Tensor], **arguments: Any) -> Plan:
    halves = [{name: value[part] for name, value in batch.items()} for part in (slice(0, 5), slice(5, 12))]
    return plan_depth(model, batches=halves, search="run", **arguments)


def gone(plan: Plan) -> list[int]:
    return sorted(int(name.rpartition(".")[2]) for name in plan.removed.get("block", ()))


DISTANCES = {"angular_distance": angle, "block_influence": turned}


@pytest.mark.parametrize(
    ("seed", "left", "count", "importance"), one_in(7, product(range(2), [False, True], [1, 2, 4], DISTANCES))
)
def test_the_nearest_run_goes(seed: int, left: bool, count: int, importance: str) -> None:
    model, batch = network(seed), padded(left)
    seen = streams(model, batch)
    starts = range(BLOCKS - count + 1)
    distance = DISTANCES[importance]
    wanted = min(starts, key=lambda at: distance(seen[at], seen[at + count], batch["attention_mask"]))
    plan = planned(model, batch, remove={"block": count}, importance=importance, replace="zero")
    assert gone(plan) == list(range(wanted, wanted + count))


@pytest.mark.slow
@pytest.mark.parametrize("replace", ["calibrated", "zero"])
def test_of_the_nearest_runs_the_one_that_changes_the_output_least_goes(replace: str) -> None:
    model, batch = network(5), padded(left=False)
    seen, mask = streams(model, batch), batch["attention_mask"]
    nearest = sorted(range(BLOCKS - 1), key=lambda at: turned(seen[at], seen[at + 2], mask))[:3]
    plan = planned(model, batch, remove={"block": 2}, replace=replace)
    others = []
    for at in nearest:
        stay = [f"model.layers.{i}" for i in range(BLOCKS) if i not in (at, at + 1)]
        others.append(planned(model, batch, remove={"block": 2}, replace=replace, ignore=stay))
    best = min(others, key=last_divergence)
    assert gone(plan) == gone(best)
    assert last_divergence(plan) == pytest.approx(last_divergence(best))


def last_divergence(plan: Plan) -> float:
    """Of the output without all blocks."""
    found = plan.evidence["divergence"]
    return float(found[max(found, key=lambda name: int(name.rpartition(".")[2]))])


def test_a_share_of_a_cost_takes_as_few_blocks_as_it_needs() -> None:
    plan = planned(network(0), padded(left=False), budget=Budget(params=0.3), importance="angular_distance")
    removed = plan.evidence["removed_share"]["params"]
    assert removed["merged"] - removed["smallest_unit"] < 0.3 <= removed["merged"]
    assert gone(plan) == list(range(gone(plan)[0], gone(plan)[-1] + 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"remove": {"attention": 1}}, "Expected blocks alone for search='run', but got attention. Give a budget in"),
        ({"budget": Budget(macs=0.2), "kinds": ["block", "mlp"]}, "Expected blocks alone for .*, but got block, mlp"),
        ({"remove": {"block": 2}, "importance": "magnitude"}, "importance to be one of .* for search='run', .*'magnit"),
        ({"remove": {"block": BLOCKS}}, "at least one block of 'model.layers' to stay, so that at most 5 of 6"),
        (
            {"remove": {"block": 3}, "ignore": ["model.layers.2", "model.layers.4"]},
            "enough units .* for {'block': 3} more, .*No run of blocks that may go is long enough. Lower the budget",
        ),
    ],
)
def test_bad_input_is_explained(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned(network(0), padded(left=False), **arguments)


def test_networks_of_no_family_are_refused() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    with pytest.raises(ValueError, match="Expected a model of a supported family for search='run', .* got Sequential"):
        plan_depth(model, remove={"block": 1}, batches=[torch.randn(8, 4)], search="run")
