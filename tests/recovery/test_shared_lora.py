"""The teacher's term of the loss, for each form of output, and steps without a set's blocks, as of the routed model."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases.fits.routed_lora import tokens
from cases.models.routed_language import SETS, sets_of
from cases.models.tiny import tiny_gpt2, tiny_llama, tiny_qwen2
from cases.sampling import one_in
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from prunerecover.callbacks import DistillRecover
from prunerecover.divergence.registry import output_divergence
from prunerecover.model.batches import ModelInputs
from prunerecover.recovery.distillation import distillation_loss, feature_loss
from prunerecover.recovery.lora import LoraSettings, inject_adapters, plan_adapters
from prunerecover.recovery.shared_lora import (
    WithoutUnits,
    self_distillation_loss,
    set_of_step,
    teacher_logits,
    without_adapters,
)
from prunerecover.routing.routed_causal_lm import RoutedCausalLM

IDS = tokens(4)
ADAPTERS = LoraSettings(rank=2, alpha=4, modules_to_save=())
MAKES = {
    "llama": lambda: tiny_llama(num_hidden_layers=6),
    "gpt2": lambda: tiny_gpt2(n_layer=6),
    "qwen2": lambda: tiny_qwen2(num_hidden_layers=6, layer_types=["full_attention", "sliding_attention"] * 3),
}


def adapted(network: nn.Module) -> Any:
    """Inject adapters with a nonzero product."""
    adapters = plan_adapters(network, ADAPTERS)
    inject_adapters(network, adapters)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return adapters


def logits(network: Any, **more: Any) -> Tensor:
    return network(input_ids=IDS, **more).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize(("make", "number"), one_in(5, itertools.product(MAKES.values(), range(len(SETS)))))
def test_logits_are_those_of_the_routed_model(make: Any, number: int) -> None:
    network = make()
    sets = sets_of(network)
    expected = logits(RoutedCausalLM(copy.deepcopy(network), sets).network(number))
    with WithoutUnits(network, sets.plans[number].edits):
        torch.testing.assert_close(logits(network), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_with_checkpointing_are_those_without(reentrant: bool) -> None:
    """The backward pass runs blocks again, at a time when all blocks are back."""
    found = []
    for checkpointing in (False, True):
        network: Any = tiny_llama(num_hidden_layers=6).train()
        if checkpointing:
            network.gradient_checkpointing_enable({"use_reentrant": reentrant})
            network.enable_input_require_grads()
        adapted(network)
        with WithoutUnits(network, sets_of(tiny_llama(num_hidden_layers=6)).plans[1].edits):
            loss = logits(network, use_cache=False).square().mean()
        with without_adapters(network), torch.no_grad():
            logits(network)
        loss.backward()
        found.append({name: p.grad for name, p in network.named_parameters() if p.requires_grad})
    plain, checkpointed = found
    gone = {name for name, grad in plain.items() if grad is None}
    assert {name.split(".")[2] for name in gone} == {"2", "4"}
    assert gone == {name for name, grad in checkpointed.items() if grad is None}
    for name in plain.keys() - gone:
        torch.testing.assert_close(checkpointed[name], plain[name], rtol=1e-5, atol=1e-6)


def test_every_set_comes_once_in_a_round() -> None:
    drawn = [set_of_step(step, 5, seed=3) for step in range(50)]
    assert set(Counter(drawn).values()) == {10}
    assert all(len(set(drawn[first : first + 5])) == 5 for first in range(0, 50, 5))
    assert drawn != [set_of_step(step, 5, seed=4) for step in range(50)]
    assert len({tuple(drawn[first : first + 5]) for first in range(0, 50, 5)}) > 5


def test_padding_is_not_distilled() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(2, 3, 7, generator=generator) for _ in range(2))
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    found = self_distillation_loss(student, teacher, ModelInputs(kwargs={"attention_mask": mask}))
    kept = mask.bool()
    torch.testing.assert_close(found, distillation_loss(student[kept], teacher[kept], 1.0))


class Answers(torch.nn.Module):
    """Network with a single output, in several forms."""

    def __init__(self, output: Any, num_classes: int) -> None:
        super().__init__()
        self.output, self.num_classes = output, num_classes

    def forward(self, images: Tensor) -> Any:
        return self.output


def term(student: Any, teacher: Any, num_classes: int = 0) -> Tensor:
    """Return the teacher's term alone, as in DistillRecover."""
    callback = DistillRecover(teacher=Answers(teacher, num_classes), teacher_weight=1.0)
    module: Any = SimpleNamespace(log=lambda *args, **kwargs: None)
    return callback._add_term(module, torch.zeros(()), ModelInputs((torch.zeros(2),)), student)


def test_classes_of_pixels_are_in_the_second_dimension() -> None:
    student, teacher = torch.randn(2, 2, 3, 4, 5)
    by_pixel = [distillation_loss(student[:, :, i, j], teacher[:, :, i, j], 3.0) for i in range(4) for j in range(5)]
    torch.testing.assert_close(distillation_loss(student, teacher, 3.0), torch.stack(by_pixel).mean())


def test_one_class_per_pixel_is_no_logit() -> None:
    student, teacher = torch.randn(2, 2, 1, 4, 5)
    expected = (student - teacher).square().sum() / teacher.square().sum()
    torch.testing.assert_close(distillation_loss(student, teacher), expected)


def test_tokens_of_a_backbone_without_a_head_are_matched_as_hidden_states() -> None:
    student, teacher = torch.randn(2, 2, 5, 16)
    torch.testing.assert_close(term(student, teacher), feature_loss(student, teacher))
    torch.testing.assert_close(term(student, teacher, num_classes=16), distillation_loss(student, teacher))


def test_hidden_states_of_transformers_models_are_matched() -> None:
    student, teacher = torch.randn(2, 2, 5, 16)
    outputs = (BaseModelOutput(last_hidden_state=tokens) for tokens in (student, teacher))
    torch.testing.assert_close(term(*outputs, num_classes=16), feature_loss(student, teacher))


def detection_map() -> Tensor:
    """Return objects, boxes and 5 classes of 2 images at 4 x 4 places."""
    made = torch.randn(2, 10, 4, 4, generator=torch.Generator().manual_seed(0))
    return torch.cat([made[:, :1].sigmoid(), 3 * made[:, 1:5], made[:, 5:].softmax(1)], 1)


def test_detection_maps_are_compared_by_objects_boxes_and_classes() -> None:
    teacher, moved = detection_map(), detection_map()
    moved[:, 2] += 0.1
    moved.requires_grad_()
    loss = distillation_loss(moved, teacher)
    assert loss.item() == output_divergence(teacher, moved).item() > 0
    (gradient,) = torch.autograd.grad(loss, moved)
    assert gradient[:, 2].abs().max() > 0
    assert distillation_loss(teacher, teacher).item() < 1e-6 < loss.item()


def test_embeddings_are_compared_by_their_angle() -> None:
    teacher = torch.nn.functional.normalize(torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    torch.testing.assert_close(distillation_loss(-teacher, teacher), torch.tensor(2.0))
    torch.testing.assert_close(distillation_loss(3 * teacher, teacher), torch.tensor(0.0))


def test_teacher_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"answer alike, but got shapes \(1, 3, 4, 4\) and \(1, 5, 4, 4\)"):
        distillation_loss(torch.zeros(1, 5, 4, 4), torch.zeros(1, 3, 4, 4))


def test_the_teacher_is_the_dense_model() -> None:
    network = tiny_llama(num_hidden_layers=6)
    dense = logits(network)
    adapted(network)
    flags = {name: p.requires_grad for name, p in network.named_parameters()}
    network.train()
    assert not torch.allclose(logits(network), dense)
    assert torch.equal(teacher_logits(network, ModelInputs(kwargs={"input_ids": IDS, "labels": IDS})), dense)
    assert {name: p.requires_grad for name, p in network.named_parameters()} == flags
    assert network.training
