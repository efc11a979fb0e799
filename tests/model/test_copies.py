"""Networks that cache what they compute: planning leaves their caches as they were, and copies them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, plan_width
from prunerecover.model.copies import deep_copy, meta_copy, share_copy
from prunerecover.model.evaluation import evaluating

IMAGES = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
BATCHES = [(IMAGES, torch.arange(8) % 3)]


class Caching(nn.Module):
    """Picks biases by an index once in evaluation mode, as attentions with relative positions do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Linear(6, 16), nn.Linear(16, 3)
        self.biases = nn.Parameter(torch.randn(5, 3))
        self.cache: dict[str, list[Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        if "cpu" not in self.cache:
            self.cache["cpu"] = [self.biases[2]]
        return self.leave(self.enter(x).relu()) + self.cache["cpu"][0]


def test_planning_leaves_no_graph_in_a_cache() -> None:
    model = Caching().eval()
    plan = plan_width(model, Budget(macs=0.3), batches=BATCHES)
    assert model.cache == {}
    apply_plan(model, plan)
    for _ in range(2):
        model.cache.clear()
        model(IMAGES).sum().backward()


def test_what_was_cached_before_stays() -> None:
    model = Caching().eval()
    model(IMAGES)
    cached = model.cache["cpu"][0]
    with evaluating(model):
        model.cache.clear()
        model(IMAGES)
    assert model.cache["cpu"][0] is cached


@pytest.mark.parametrize("copy", [share_copy, deep_copy, meta_copy])
def test_a_cache_with_a_graph_is_copied(copy: object) -> None:
    model = Caching().eval()
    model(IMAGES)
    assert not model.cache["cpu"][0].is_leaf
    found = copy(model)  # type: ignore[operator]
    assert found.cache["cpu"][0].shape == (3,)
    assert found.cache is not model.cache
