"""Steps of learning: samples enough for outputs of any shape, in the library, in depth and in width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.planning.networks import images, vit
from torch import Tensor, nn

from prunerecover import Budget, plan_depth, plan_width
from prunerecover.calibration import steps
from prunerecover.calibration.steps import Steps, steps_of
from prunerecover.model.batches import ModelInputs, as_inputs

INPUTS = [as_inputs(torch.randn(8, 3)) for _ in range(3)]


class Returning(nn.Module):
    """Network of some output."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(3, 6), make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.layer(x))


OUTPUTS: dict[str, tuple[Callable[[Tensor], Any], float]] = {
    "logits": (lambda found: found, 1),
    "numbers": (lambda found: found[:, 0], 1),
    "tokens": (lambda found: found.view(len(found), 3, 2), 3),
    "two": (lambda found: (found, found[:, :2]), 2),
    "no objects": (lambda found: [{"boxes": one[:0].view(0, 4), "scores": one[:0]} for one in found], 0),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_of_a_sample_are_counted(name: str) -> None:
    make, outputs = OUTPUTS[name]
    asked: list[int] = []

    def further(samples: int) -> list[ModelInputs]:
        asked.append(samples)
        return [as_inputs(torch.randn(samples, 3))]

    found = steps_of(Returning(make), INPUTS, further)
    assert found.outputs == outputs
    assert asked == ([] if not outputs else [-(-steps.WANTED_OUTPUTS // outputs) - 24])
    assert sum(batch.n_samples for batch in found.batches) == 24 + sum(asked)
    assert sum(batch.n_samples for batch in found.batches[: found.first]) == 24


@pytest.mark.parametrize(("samples", "tokens", "enough"), [(16, 1, False), (32, 1, True), (16, 64, True)])
def test_few_samples_are_enough_if_they_have_many_outputs(samples: int, tokens: int, enough: bool) -> None:
    network = Returning(lambda found: found.repeat(1, tokens).view(len(found), tokens, 6))
    assert steps_of(network, [as_inputs(torch.randn(samples, 3))]).enough == enough


@pytest.mark.parametrize("plan", ["depth", "width"])
def test_searches_by_name_learn_from_further_samples(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunerecover.session.session.Session.further", lambda *_: [as_inputs(images(1, 40)[0][0])])
    seen: list[Steps] = []

    def watched(*args: Any, **how: Any) -> Steps:
        seen.append(steps_of(*args, **how))
        return seen[-1]

    for module in ("prunerecover.library.tuning", "prunerecover.width.tuning"):
        monkeypatch.setattr(f"{module}.steps_of", watched)
    if plan == "depth":
        plan_depth(vit(depth=2), Budget(remove={"attention": 1}), batches=images(4, 8), search="greedy")
    else:
        plan_width(vit(depth=2), Budget(params=0.3), batches=images(4, 8), allocation="uniform")
    (one,) = seen
    fitted = {"depth": 24, "width": 32}[plan]
    assert sum(batch.n_samples for batch in one.batches) == fitted + 40
    assert sum(batch.n_samples for batch in one.batches[: one.first]) == fitted


@pytest.mark.parametrize(("patches", "sizes"), [(4, [2, 2]), (10, [4])])
def test_steps_have_parts_unless_rows_are_no_samples(patches: int, sizes: list[int]) -> None:
    batch = as_inputs({"x": torch.randn(4, 3), "patches": torch.randn(patches, 3)})
    network = Returning(lambda found: found)
    network.forward = lambda x, patches: network.make(network.layer(x)) + patches.mean()  # type: ignore[method-assign]
    found = steps_of(network, [batch])
    assert [part.n_samples for part in found.parts(0)] == sizes
    assert [len(found.dense.of(number)) for number in range(len(sizes))] == sizes  # type: ignore[arg-type]
