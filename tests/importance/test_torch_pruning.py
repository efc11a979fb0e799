"""Importances of torch-pruning on our groups, against the library's own scores of its own groups."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch_pruning as tp
from cases.models.tiny import tiny_llama
from cases.sampling import one_in
from cases.width.groups import built, found_in
from cases.width.oracle import rewritten
from cases.width.plan_width import cnn, labelled_batches, vit
from cases.width.scores import computed, context
from torch import Tensor, nn

from prunerecover import Budget, find_groups, plan_width
from prunerecover.importance.measuring.dependency_group import dependency_group
from prunerecover.importance.measuring.losses import supervised_loss
from prunerecover.importance.registry import IMPORTANCES, compute_importances
from prunerecover.importance.torch_pruning import torch_pruning_importance
from prunerecover.plan.groups import Group

CLASSES = {
    "group_taylor": tp.importance.GroupTaylorImportance,
    "group_magnitude": tp.importance.GroupMagnitudeImportance,
    "lamp": tp.importance.LAMPImportance,
}
Members = set[tuple[str, str, tuple[int, ...]]]


def unfused(name: str) -> tuple[nn.Module, Tensor, tuple[Group, ...]]:
    """Return a network that torch-pruning can follow: padded shortcuts as convolutions, explicit attention."""
    (model, inputs), found = built(name), found_in(name)
    network = rewritten(model, found)
    for module in network.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    return network, inputs, found.groups


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def members(description: Any, model: nn.Module) -> Members:
    """Return layers, pruning functions and channels, without operations and bare parameters."""
    paths = {module: path for path, module in model.named_modules()}
    return {
        (paths[dep.layer], dep.handler.__name__, tuple(sorted(indices)))
        for dep, indices in description
        if isinstance(dep.layer, nn.Module) and dep.layer in paths
    }


def theirs_of(graph: Any, ours: Any) -> Any:
    """Return torch-pruning's group from the same root, with all channels."""
    root = ours[0].dep
    inputs = graph.is_in_channel_pruning_fn(root.handler)
    size = graph.get_in_channels(root.layer) if inputs else graph.get_out_channels(root.layer)
    return graph.get_pruning_group(root.layer, root.handler, list(range(size)))


@pytest.mark.filterwarnings("ignore:Unwrapped parameters detected")
@pytest.mark.parametrize(
    "name",
    [
        "option_a_resnet20",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("bottlenecks", "densenet")),
        *("vgg", "mobilenet_v2", "convnext", "deit"),
    ],
)
def test_scores_are_the_librarys_own(name: str) -> None:
    """All groups have equal members; the score of a unit of several channels, such as a head, is their mean."""
    network, inputs, groups = unfused(name)
    graph = tp.DependencyGraph().build_dependency(network, inputs)
    network.zero_grad()
    loss_of(network, inputs).backward()
    expected: dict[str, dict[str, Tensor]] = {signal: {} for signal in CLASSES}
    for group in groups:
        ours, units = dependency_group(network, group)
        theirs = theirs_of(graph, ours)
        assert members(ours, network) == members(theirs, network)
        for signal, importance in CLASSES.items():
            values = importance()(theirs)
            if values is not None:  # no layer that the class looks at
                expected[signal][group.name] = torch.stack([values[units == u].mean() for u in range(group.size)])
    network.zero_grad()
    for signal, by_group in expected.items():
        assert by_group.keys() == {group.name for group in groups}
        found = computed(context(network, groups, [inputs], loss_of), [signal])[signal]
        for group_name, values in by_group.items():
            torch.testing.assert_close(found[group_name], values.double(), rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore:Unwrapped parameters detected")
def test_heads_are_averaged_as_the_librarys_pruner_does() -> None:
    network, inputs, groups = unfused("deit")
    heads = [group for group in groups if group.kind == "head"]
    pruner = tp.pruner.BasePruner(
        network,
        inputs,
        importance=tp.importance.GroupMagnitudeImportance(),
        num_heads={block.attn.qkv: block.attn.num_heads for block in network.blocks},
        prune_num_heads=True,
        in_channel_groups={},
        out_channel_groups={},
        channel_groups={},
        ignored_layers=[network.head],
    )
    found = computed(context(network, heads), ["group_magnitude"])["group_magnitude"]
    for group in heads:
        projection = network.get_submodule(group.name.replace("qkv", "proj"))
        qkv = pruner.DG.get_pruning_group(
            network.get_submodule(group.name), tp.prune_linear_out_channels, list(range(3 * projection.in_features))
        )
        importance = pruner.estimate_importance(pruner._downstream_node_as_root_if_attention(qkv))
        expected = importance.view(group.size, -1).mean(1)  # BasePruner._prune, "average importance by head"
        torch.testing.assert_close(found[group.name], expected.double(), rtol=1e-5, atol=0)


class Strange(nn.Module):
    """Grouped convolution with its groups as units, a transposed convolution and a flattened map."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.grouped = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, groups=4)
        self.c, self.t, self.f = nn.Conv2d(12, 6, 1), nn.ConvTranspose2d(6, 5, 2), nn.Linear(5 * 4 * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self.t(self.c(self.grouped(self.a(x)).relu()).relu()).flatten(1))


def test_units_of_several_channels_by_hand() -> None:
    torch.manual_seed(0)
    model = Strange()
    groups = {group.name: group for group in find_groups(model, torch.zeros(1, 3, 5, 5)).groups}
    sums = tp.importance.GroupMagnitudeImportance(normalizer=None, group_reduction="sum")
    (found,) = compute_importances(context(model, list(groups.values())), [sums])

    def energy(weight: Tensor, dim: int, units: int) -> Tensor:
        return weight.detach().double().square().movedim(dim, 0).reshape(units, -1).sum(1)

    pieces = energy(model.a.weight, 0, 4) + energy(model.grouped.weight, 0, 4) + energy(model.c.weight, 1, 4)
    torch.testing.assert_close(found["a"], pieces / 2, rtol=1e-5, atol=0)  # two channels of `a` each
    flat = energy(model.t.weight, 1, 5) + energy(model.f.weight, 1, 5)
    torch.testing.assert_close(found["t"], flat, rtol=1e-5, atol=0)
    torch.testing.assert_close(found["c"], energy(model.c.weight, 0, 6) + energy(model.t.weight, 0, 6))


@pytest.mark.slow
def test_grouped_query_attention_is_scored() -> None:
    ids = torch.randint(3, 60, (4, 9), generator=torch.Generator().manual_seed(0))
    batches = [{"input_ids": ids, "labels": ids}]
    model = tiny_llama()
    groups = find_groups(model, batches[0]).groups
    plain = {"normalizer": None, "group_reduction": "sum"}
    found = compute_importances(context(model, groups), [tp.importance.GroupMagnitudeImportance(**plain)])[0]
    head = next(group for group in groups if group.kind == "head")
    attention = model.get_submodule(head.name.rpartition(".")[0])
    weights = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight, attention.o_proj.weight.T]
    per_unit = sum(w.detach().double().square().reshape(head.size, -1).sum(1) for w in weights)
    torch.testing.assert_close(found[head.name], per_unit / attention.head_dim, rtol=1e-5, atol=0)
    assert plan_width(model, Budget(macs=0.2), batches=batches, importance="group_taylor").removed


@pytest.mark.slow
@pytest.mark.parametrize("signal", one_in(3, CLASSES))
def test_an_object_and_its_name_plan_alike(signal: str) -> None:
    batches = labelled_batches()
    named = plan_width(cnn(), Budget(macs=0.3), batches=batches, importance=signal)
    given = plan_width(cnn(), Budget(macs=0.3), batches=batches, importance=CLASSES[signal]())
    assert named.edits == given.edits
    assert named.made_by.arguments["importance"] == signal
    assert given.made_by.arguments["importance"] == CLASSES[signal].__name__


def test_both_signals_of_a_tolerance_may_be_the_librarys() -> None:
    plan = plan_width(
        vit(),
        allocation="tolerance",
        tolerance=0.3,
        importance=[tp.importance.FPGMImportance(), "group_taylor"],
        batches=labelled_batches(),
    )
    assert plan.removed
    assert plan.made_by.arguments["importance"] == ["FPGMImportance", "group_taylor"]


@pytest.mark.parametrize("signal", one_in(3, CLASSES))
def test_the_model_is_bit_identical_afterwards(signal: str) -> None:
    model, (images, labels) = cnn().train(), labelled_batches()[0]
    model.conv1.weight.requires_grad_(False)
    supervised_loss(model, (images, labels)).backward()
    before, random_state = copy.deepcopy(model), torch.get_rng_state()
    waiting = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    groups = [group for group in find_groups(model, images).groups if group.name.endswith("0.conv1")]
    computed(context(model, groups, [(images, labels)], supervised_loss), [signal])
    assert torch.equal(torch.get_rng_state(), random_state)
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in model.state_dict().items())
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert grads.keys() == waiting.keys()
    assert all(torch.equal(grads[name], waiting[name]) for name in waiting)
    assert not model.conv1.weight.requires_grad


def test_gradients_are_of_the_mean_over_samples_whatever_the_batches() -> None:
    model, images, labels = vit().double(), *(torch.cat(parts) for parts in zip(*labelled_batches(), strict=True))
    groups = find_groups(model, images[:1].double()).groups
    whole = [(images.double(), labels)]
    parts = [(images[:20].double(), labels[:20]), (images[20:].double(), labels[20:])]
    found = [
        computed(context(model, groups, b, supervised_loss), ["group_taylor"])["group_taylor"] for b in (whole, parts)
    ]
    for group in groups:
        torch.testing.assert_close(found[0][group.name], found[1][group.name], rtol=1e-5, atol=0)


def test_gradients_share_the_pass_of_our_own_signals() -> None:
    model, batches, runs = vit(), labelled_batches(), []
    groups = find_groups(model, batches[0][0]).groups
    handle = model.register_forward_hook(lambda *_: runs.append(1))
    computed(context(model, groups, batches, supervised_loss), ["gate_taylor", "group_taylor", "u_score", "lamp"])
    handle.remove()
    assert len(runs) == len(batches)


def test_chance_is_seeded() -> None:
    model = vit()
    groups = find_groups(model, labelled_batches()[0][0]).groups
    chance = tp.importance.RandomImportance()
    one, again, other = (compute_importances(context(model, groups, seed=seed), [chance])[0] for seed in (1, 1, 2))
    assert all(torch.equal(one[group.name], again[group.name]) for group in groups)
    assert not torch.equal(one[groups[0].name], other[groups[0].name])


class Own(tp.importance.Importance):
    """A user's class: gradients of the root."""

    def __call__(self, group: Any) -> Tensor:
        weight, (dep, indices) = group[0].dep.layer.weight, group[0]
        dim = 1 if dep.handler in (tp.prune_linear_in_channels, tp.prune_conv_in_channels) else 0
        return weight.grad.movedim(dim, 0).flatten(1).norm(dim=1)[indices]


def test_a_class_of_the_users_own() -> None:
    model, (images, labels) = vit(), labelled_batches()[0]
    groups = find_groups(model, images).groups
    found = compute_importances(
        context(model, groups, [(images, labels)], supervised_loss), [torch_pruning_importance(Own(), gradients=True)]
    )[0]
    twin = vit()
    supervised_loss(twin, (images, labels)).backward()
    neuron, head = (next(group for group in groups if group.kind == kind) for kind in ("neuron", "head"))
    expected = twin.get_submodule(neuron.name).weight.grad.norm(dim=1)
    torch.testing.assert_close(found[neuron.name], expected.double(), rtol=1e-4, atol=1e-9)
    projection = twin.get_submodule(head.name.replace("qkv", "proj")).weight.grad
    heads = projection.norm(dim=0).view(head.size, -1).mean(1)
    torch.testing.assert_close(found[head.name], heads.double(), rtol=1e-4, atol=1e-9)


def test_the_librarys_scores_are_known_by_name() -> None:
    assert {"group_taylor", "group_magnitude", "lamp"} <= IMPORTANCES.keys()
