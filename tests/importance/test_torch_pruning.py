"""Importances of torch-pruning on our groups, against the library's own scores of the same groups; refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch_pruning as tp
from cases.models.tiny import tiny_gpt2, tiny_mixture
from cases.sampling import first
from cases.width.groups import built, found_in
from cases.width.oracle import rewritten
from cases.width.plan_width import labelled_batches, vit
from cases.width.scores import computed, context
from torch import Tensor, nn

from prunerecover import Budget, find_groups, plan_width
from prunerecover.importance.measuring.dependency_group import dependency_group
from prunerecover.importance.measuring.losses import supervised_loss
from prunerecover.importance.registry import compute_importances
from prunerecover.importance.torch_pruning import torch_pruning_importance
from prunerecover.plan.groups import Group
from prunerecover.width.groups.experts import find_experts

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
@pytest.mark.parametrize("name", first(3, ["option_a_resnet20", "mobilenet_v2", "deit", "convnext", "densenet"]))
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


COLLECTS = "but torch-pruning's {0} collects data of its own while batches run. Use GroupTaylorImportance"
CLASS = r"but got the class {0}\. Pass {0}\(\.\.\.\)"
NOTHING = "{0} to score 48 channels of 'blocks.0.attn.qkv', which is made of Linear, but got no scores"


@pytest.mark.parametrize(
    ("name", "instance", "error", "message"),
    [
        ("GroupHessianImportance", True, ValueError, COLLECTS),
        ("OBDCImportance", True, ValueError, COLLECTS),
        ("ActivationImportance", True, ValueError, COLLECTS),
        ("GroupTaylorImportance", False, TypeError, CLASS),
        ("BNScaleImportance", True, ValueError, NOTHING),
    ],
)
def test_importances_that_cannot_score_are_refused(name: str, instance: bool, error: Any, message: str) -> None:
    own = getattr(tp.importance, name)
    with pytest.raises(error, match=message.format(name)):
        plan_width(vit(), Budget(macs=0.3), batches=labelled_batches(), importance=own() if instance else own)


def test_experts_and_fused_weights_of_unknown_modules() -> None:
    mixture = tiny_mixture("mixtral")
    message = (
        r"make and read the experts of 'model\.layers\.0.*' for a score of torch-pruning, but '.*' belongs to a Mixtral"
    )
    with pytest.raises(ValueError, match=message):
        computed(context(mixture, find_experts(mixture)), ["group_magnitude"])
    gpt = tiny_gpt2()
    groups = find_groups(gpt, {"input_ids": torch.randint(3, 60, (2, 9))}).groups
    message = r"belongs to a Conv1D, which it does not know. Leave the group out, ignore=\['transformer"
    with pytest.raises(ValueError, match=message):
        computed(context(gpt, groups), ["group_magnitude"])


def test_scores_that_the_library_divides_by_zero() -> None:
    model = vit()
    nn.init.zeros_(model.blocks[0].mlp.fc1.weight)
    nn.init.zeros_(model.blocks[0].mlp.fc2.weight)
    group = next(g for g in find_groups(model, labelled_batches()[0][0]).groups if g.name == "blocks.0.mlp.fc1")
    with pytest.raises(ValueError, match="the scores of 'blocks.0.mlp.fc1' are not. Are they all zero?"):
        computed(context(model, [group]), ["group_magnitude"])
    whole = tp.importance.GroupMagnitudeImportance(normalizer=None)
    assert not compute_importances(context(model, [group]), [whole])[0][group.name].any()


def test_taylor_without_a_loss() -> None:
    model = vit()
    groups = find_groups(model, labelled_batches()[0][0]).groups
    for signal in ("group_taylor", tp.importance.GroupTaylorImportance()):
        with pytest.raises(ValueError, match=r"argument loss=f\(model, batch\) for importance=.*, but got none"):
            compute_importances(context(model, groups, labelled_batches()), [signal])


def test_groups_of_another_model() -> None:
    model = vit()
    group = find_groups(model, labelled_batches()[0][0]).groups[0]
    other = replace(
        group, slices=tuple(part.model_copy(update={"tensor": f"x.{part.tensor}"}) for part in group.slices)
    )
    with pytest.raises(ValueError, match="Expected a module at 'x.blocks"):
        computed(context(model, [other]), ["lamp"])
