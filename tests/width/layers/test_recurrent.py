"""Hidden units of recurrent layers: with all their gates, in all layers and both directions of a module."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from cases.layers.attentions import seeded
from cases.layers.recurrent import SEQUENCES, Attended, Tagger
from cases.width.round_trip import RoundTrip, RoundTripChecks
from torch import Tensor, nn

from prunerecover import Budget, find_groups, plan_width

FORMS = {
    "LSTM": partial(Tagger),
    "RNN": partial(Tagger, nn.RNN, nonlinearity="relu"),
    "directions": partial(Tagger, bidirectional=True, num_layers=2),
    "states of a GRU": partial(Tagger, nn.GRU, states=True, num_layers=2),
    "packed": partial(Tagger, packed=True),
    "without biases": partial(Tagger, bias=False),
    "attended": Attended,
}


def built(name: str) -> nn.Module:
    return seeded(FORMS[name](), std=0.5)


NETWORKS = {name: RoundTrip(partial(built, name), SEQUENCES) for name in FORMS}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> RoundTrip:
    return NETWORKS[request.param]


class TestRoundTrip(RoundTripChecks):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("name", ["states of a GRU"])
def test_runs_in_onnxruntime(name: str, tmp_path: Path) -> None:
    NETWORKS[name].assert_in_onnx(tmp_path)


@pytest.mark.parametrize("name", ["LSTM", "directions", "attended"])
def test_plan_takes_units_that_hardly_count(name: str) -> None:
    model = built(name)
    for weight in (model.last.weight,) if name != "attended" else (model.score.weight, model.value.weight):
        weight.data[:, 4:5] *= 1e-4
        weight.data[:, 14:15] *= 1e-4
    for weight_name, weight in model.rnn.named_parameters():
        if weight.ndim == 2 and weight_name not in ("weight_ih_l0", "weight_ih_l0_reverse"):
            weight.data[:, 4 :: 10 if name != "attended" else 8] *= 1e-4
    ignore = ["first"] if name != "attended" else ["value"]
    budget = Budget(remove={"neuron": 1})
    plan = plan_width(model, budget, batches=[SEQUENCES], loss=squares, ignore=ignore, replace="zero")
    assert plan.removed == {"neuron": ("rnn[4]",)}


def squares(network: nn.Module, batch: Tensor) -> Tensor:
    return network(batch).square().mean()


def test_gradients_are_taken_without_cudnn() -> None:
    """The recurrent layers of cuDNN refuse a backward pass in evaluation mode."""
    enabled = []

    def loss(network: nn.Module, batch: Tensor) -> Tensor:
        enabled.append(torch.backends.cudnn.enabled)
        return squares(network, batch)

    plan_width(built("LSTM"), Budget(params=0.2), batches=[SEQUENCES], loss=loss)
    assert enabled == [False]
    assert torch.backends.cudnn.enabled


def test_projected_states_stay() -> None:
    model = seeded(Tagger(proj_size=4, num_layers=1), std=0.5)
    model.last = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="What keeps them: 'first', 'rnn' by proj_size in 'rnn'|by proj_size in 'rnn'"):
        find_groups(model, SEQUENCES)


def test_states_that_code_makes_of_a_fixed_size_stay() -> None:
    class Fixed(Tagger):
        def forward(self, x: Tensor) -> Tensor:
            zeros = torch.zeros(1, len(x), 10)
            return self.last(self.rnn(self.first(x), (zeros, zeros))[0])

    found = find_groups(seeded(Fixed(), std=0.5), SEQUENCES)
    assert [group.name for group in found.groups] == ["first"]
