"""The teacher's part of the loss: softened classes where they are, and hidden states where there is no head."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from prunerecover.callbacks import DistillRecover
from prunerecover.model.batches import ModelInputs
from prunerecover.recovery.distillation import distillation_loss, feature_loss


class Answers(torch.nn.Module):
    """A network that gives one output, in some form."""

    def __init__(self, output: Any, num_classes: int) -> None:
        super().__init__()
        self.output, self.num_classes = output, num_classes

    def forward(self, images: Tensor) -> Any:
        return self.output


def term(student: Any, teacher: Any, num_classes: int = 0) -> Tensor:
    """The teacher's part alone, as DistillRecover adds it."""
    callback = DistillRecover(teacher=Answers(teacher, num_classes), alpha=1.0)
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


def test_teacher_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"answer alike, but got shapes \(1, 3, 4, 4\) and \(1, 5, 4, 4\)"):
        distillation_loss(torch.zeros(1, 5, 4, 4), torch.zeros(1, 3, 4, 4))
