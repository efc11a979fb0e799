"""The angle of a block's output without units on the graph: each block is run alone, as in the whole network."""

from __future__ import annotations

import math

import pytest
import torch
from cases.models.tiny import tiny_llama
from torch import Tensor, nn

from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.model.copies import share_copy
from prunerecover.model.hooks import recording
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits

KINDS = ("attention", "layer")


@pytest.fixture(scope="module")
def planner() -> DepthSearch:
    model = tiny_llama().eval()
    ids = torch.randint(16, (8, 6), generator=torch.Generator().manual_seed(0))
    config = DepthConfig(importance="block_output_angle", search="two_to_one", replace="zero")
    return DepthSearch(Session(model, [{"input_ids": ids[:3]}, {"input_ids": ids[3:]}]), KINDS, config)


def block_output(network: nn.Module, block: str, batches: list[Tensor]) -> Tensor:
    found = []
    for ids in batches:
        with recording({block: network.get_submodule(block)}) as seen, torch.no_grad():
            network(input_ids=ids)
        found.append(seen[f"{block}.out"].flatten(0, 1))
    return torch.cat(found)


@pytest.mark.slow
def test_scores_equal_those_of_whole_runs(planner: DepthSearch) -> None:
    scores = planner.rank()
    batches = [batch.kwargs["input_ids"] for batch in planner.session.samples.all_samples]
    for unit in planner.units:
        network = share_copy(planner.model)
        apply_edits(network, planner.removals.edits([unit], in_place=True))
        dense, other = (block_output(each, unit.block, batches).double() for each in (planner.model, network))
        angles = torch.cosine_similarity(dense, other, dim=-1).clamp(-1, 1).arccos() / math.pi
        assert scores[unit.name] == pytest.approx(float(angles.mean()), abs=1e-6), unit.name
