"""Scoring leaves no trace, runs the model once, and refuses unusable batches."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases.models.hand_made_groups import CLASSES, cross_entropy, images, resnet_groups, small_resnet
from cases.width.scores import Batch, Perceptron, computed, context, directions_of, largest_distance, perceptron, same
from torch import Tensor, nn

from prunerecover.importance.data_free import magnitude, random
from prunerecover.importance.first_order import gate_taylor, r_score
from prunerecover.importance.measuring.unit_slices import check_names
from prunerecover.importance.registry import IMPORTANCES
from prunerecover.importance.u_score import u_score
from prunerecover.plan.groups import Group, Slice, Tap
from prunerecover.refusal import Refusal
from prunerecover.width.groups.discovery import find_groups

OF_EXPERTS = ("routing", "reap", "reap_normalised")  # see test_experts
ANYWHERE = tuple(n for n, entry in IMPORTANCES.items() if entry.of != "depth" and n not in OF_EXPERTS)


class Restless(nn.Module):
    """Dropout, BatchNorm in training mode, a frozen weight, and gradients waiting for an optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.drop = small_resnet(), nn.Dropout(0.5)
        self.net.linear.weight.requires_grad_(False)
        self.net.layer1[0].conv1.weight.requires_grad_(False)
        self.train()
        self.net.bn1.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.drop(x)) + 0 * torch.rand(())


def restless() -> tuple[Restless, tuple[Group, ...]]:
    model = Restless()

    def moved(group: Group) -> Group:
        slices = tuple(part.model_copy(update={"tensor": f"net.{part.tensor}"}) for part in group.slices)
        return replace(group, slices=slices, taps=tuple(replace(s, module=f"net.{s.module}") for s in group.taps))

    return model, tuple(moved(group) for group in resnet_groups(model.net))


@pytest.mark.parametrize("name", ANYWHERE)
def test_scoring_leaves_no_trace(name: str) -> None:
    model, groups = restless()
    cross_entropy(model, images()[0]).backward()
    before = copy.deepcopy(model)
    waiting = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    random_state = torch.get_rng_state()
    computed(context(model, groups, images(), loss=cross_entropy), [name])
    assert torch.equal(torch.get_rng_state(), random_state)
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    state, old = model.state_dict(), before.state_dict()
    assert all(torch.equal(state[key], old[key]) for key in old)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == before.get_parameter(name).requires_grad
        assert (parameter.grad is None) == (waiting[name] is None)
        assert parameter.grad is None or torch.equal(parameter.grad, waiting[name])


def test_signals_together_equal_signals_alone_and_run_the_model_once() -> None:
    model, batches = small_resnet(), images()
    groups = resnet_groups(model)
    runs = []
    handle = model.register_forward_hook(lambda *_: runs.append(1))
    together = computed(context(model, groups, batches, loss=cross_entropy), ANYWHERE)
    handle.remove()
    assert len(runs) == len(batches)
    alone = {
        "u_score": u_score(context(model, groups, batches)),
        "r_score": r_score(context(model, groups, batches, cross_entropy)),
        "gate_taylor": gate_taylor(context(model, groups, batches, cross_entropy)),
        "magnitude": magnitude(context(model, groups)),
        "random": random(context(None, groups)),
    }
    assert list(together) == list(ANYWHERE)
    for name, scores in alone.items():
        assert same(together[name], scores)
        assert all(
            s.dtype == torch.float64 and s.shape == (g.size,) for s, g in zip(scores.values(), groups, strict=True)
        )


def test_a_module_that_is_called_twice_is_seen_twice() -> None:
    class Twice(Perceptron):
        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).relu() + self.first(-x).relu())

    _, groups, batches = perceptron()
    torch.manual_seed(0)
    model = Twice().double()
    once = Perceptron().double()
    once.load_state_dict(model.state_dict())
    negative = [(-x, y) for x, y in batches]
    expected = torch.maximum(*(u_score(context(once, groups, b))["first"] for b in (batches, negative)))
    assert torch.allclose(u_score(context(model, groups, batches))["first"], expected)


class Attention(nn.Module):
    """Calls its layers by keyword, and returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.mixed = nn.Linear(6, 6), nn.MultiheadAttention(6, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(input=x)
        return self.mixed(hidden, hidden, hidden)[0].mean(1)[:, :CLASSES]


@pytest.mark.parametrize("score", ["u_score", "gate_taylor"])
def test_sites_of_keyword_inputs_and_of_tuples(score: str) -> None:
    """Equal activations, as keyword arguments or in a returned tuple, give equal scores."""
    torch.manual_seed(0)
    model, labels = Attention(), torch.arange(12) % CLASSES
    batches = [(torch.randn(12, 3, 6), labels)]
    wrapped = nn.Sequential(nn.Identity(), model)
    taps = {
        "keyword": (model, Tap("inner", of="input", dim=-1)),
        "plain": (wrapped, Tap("0", dim=-1)),
        "tuple": (model, Tap("mixed", dim=-1)),
    }
    found = {
        name: computed(context(net, [Group("x", "channel", 6, (), (tap,))], batches, loss=cross_entropy), [score])[
            score
        ]["x"]
        for name, (net, tap) in taps.items()
    }
    assert torch.allclose(found["keyword"], found["plain"], rtol=1e-4)
    hidden = model.inner(batches[0][0])
    outputs = model.mixed(hidden, hidden, hidden)[0].detach()
    if score == "u_score":
        basis = directions_of(3, 64, seed=0)
        expected = [largest_distance(outputs[..., c] @ basis.T, labels) for c in range(6)]
        assert found["tuple"].tolist() == pytest.approx(expected, rel=1e-4)
    else:
        assert (found["tuple"][:CLASSES] > 0).all()
        assert (found["tuple"][CLASSES:] == 0).all()  # not among the logits


def one_class() -> list[Batch]:
    return [(torch.randn(8, 3, 8, 8), torch.ones(8, dtype=torch.long))]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (one_class(), "Expected samples of at least two classes, but got 1"),
        ([torch.randn(8, 3, 8, 8)], "Expected labelled batches for the U-Score.*Pass labels="),
        ([(torch.randn(8, 3, 8, 8), torch.rand(8))], r"one integer class per sample, shape \(8,\)"),
        ([(torch.randn(8, 3, 8, 8), torch.ones(8, 8).long())], r"but got shape \(8, 8\) of torch.int64"),
        ([], "Expected at least one batch, but there was none"),
        ([*images(), (torch.randn(8, 3, 16, 16), images()[0][1])], "batch at 'bn1', but got units of 64 and of 256"),
    ],
)
def test_unusable_batches_are_refused(batches: list[Any], message: str) -> None:
    model = small_resnet()
    with pytest.raises(ValueError, match=message):
        u_score(context(model, resnet_groups(model), batches))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("u_score", {"taps": ()}, "a tap where the units of 'layer1.0.conv1' are seen"),
        ("gate_taylor", {"taps": ()}, "a tap where the units of 'layer1.0.conv1' can be gated"),
        ("u_score", {"size": 50}, "Expected the output of 'layer1.0.bn1' to hold 50 units of 1 entries"),
        ("u_score", {"taps": (Tap("unused"),)}, "Expected 'unused', where the units of .* are seen, to be called"),
        ("magnitude", {"slices": (Slice(tensor="x.weight", dim=0),)}, "Expected a module at 'x'"),
        (
            "magnitude",
            {"slices": (Slice(tensor="conv1.bias", dim=0),)},
            r"Expected a parameter or buffer 'conv1.bias'.*Conv2d\) has none",
        ),
    ],
)
def test_groups_that_do_not_fit_are_refused(name: str, change: dict[str, Any], message: str) -> None:
    model = small_resnet()
    model.unused = nn.Conv2d(1, 1, 1)
    group = replace(resnet_groups(model)[0], **change)
    with pytest.raises(ValueError, match=message):
        computed(context(model, [group], images(), loss=cross_entropy), [name])


def test_samples_of_different_numbers_of_rows_are_refused_in_one_batch() -> None:
    class Boxes(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.cat([x, x[:1]]))  # two boxes in the first sample

    model = Boxes(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    groups, x = find_groups(model, torch.randn(1, 4)).groups, torch.randn(2, 4)

    def scores(batches: Sequence[Tensor]) -> Tensor:
        return gate_taylor(context(model, groups, batches, lambda net, own: net(own).square().sum()))[groups[0].name]

    with pytest.raises(ValueError, match=r"got shape \(3, 6\)\..* as the boxes of a detector, pass one sample per"):
        scores([x])
    assert scores(x.split(1)).any()


def test_gradients_need_a_loss_that_reaches_the_units() -> None:
    model = small_resnet()
    groups = resnet_groups(model)
    with pytest.raises(ValueError, match=r"Expected argument loss=f\(model, batch\) for importance='r_score'"):
        computed(context(model, groups, images()), ["r_score"])
    other = small_resnet()
    for score in (r_score, gate_taylor):
        with pytest.raises(ValueError, match="no gradient reached any"):
            score(context(model, groups, images(), lambda _, batch: cross_entropy(other, batch)))
    with pytest.warns(UserWarning, match="gradient of the loss is zero in every batch, so that all units score alike"):
        gate_taylor(context(model, groups, images(), lambda own, batch: 0 * cross_entropy(own, batch)))


def test_units_that_are_computed_without_gradients_do_not_count_as_useless() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = Perceptron(), nn.Linear(CLASSES, 2)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.body(x)
            return self.head(x)

    x = torch.rand(4, 6)
    model = Frozen()
    groups = find_groups(model, x).groups
    with pytest.raises(Refusal, match=r"of 'body.first' are computed under torch.no_grad.* or pass importance=\"magni"):
        gate_taylor(context(model, groups, [x], lambda net, batch: net(batch).square().mean()))


def test_unknown_signals_and_bad_values_are_refused() -> None:
    model = small_resnet()
    groups = resnet_groups(model)
    with pytest.raises(ValueError, match="Expected importances to be one of taylor, .*, but got 'luck'"):
        computed(context(model, groups, images()), ["luck"])
    with torch.no_grad():
        model.conv1.weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"importances from 'magnitude', but 1 of 4 are not \(conv1: shape \(6,\)"):
        computed(context(model, groups, images()), ["magnitude"])


def test_groups_of_one_name_are_refused() -> None:
    groups = [Group("experts", "expert", 4, ()), Group("experts", "neuron", 8, ())]
    with pytest.raises(ValueError, match="'experts' names a group of kind 'expert' and one of kind 'neuron'"):
        check_names(groups)
