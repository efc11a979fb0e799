"""Cases that importances of torch-pruning cannot score are refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch_pruning as tp
from cases.models.tiny import tiny_gpt2, tiny_mixture
from cases.width.plan_width import cnn, labelled_batches, vit
from cases.width.scores import computed, context
from torch import nn

from prunerecover import Budget, find_groups, plan_width
from prunerecover.importance.registry import compute_importances
from prunerecover.width.groups.experts import find_experts


@pytest.mark.parametrize("name", ["GroupHessianImportance", "OBDCImportance", "ActivationImportance"])
def test_importances_that_collect_something_of_their_own(name: str) -> None:
    message = f"but torch-pruning's {name} collects data of its own while batches run. Use GroupTaylorImportance"
    with pytest.raises(ValueError, match=message):
        plan_width(cnn(), Budget(macs=0.3), batches=labelled_batches(), importance=getattr(tp.importance, name)())


def test_a_class_in_the_place_of_an_object() -> None:
    message = r"but got the class GroupTaylorImportance\. Pass GroupTaylorImportance\(\.\.\.\)"
    with pytest.raises(TypeError, match=message):
        plan_width(cnn(), Budget(macs=0.3), batches=labelled_batches(), importance=tp.importance.GroupTaylorImportance)


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


def test_groups_without_what_an_importance_looks_at() -> None:
    message = (
        "BNScaleImportance to score 48 channels of 'blocks.0.attn.qkv', which is made of Linear, but got no scores"
    )
    with pytest.raises(ValueError, match=message):
        plan_width(vit(), Budget(macs=0.3), batches=labelled_batches(), importance=tp.importance.BNScaleImportance())


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
