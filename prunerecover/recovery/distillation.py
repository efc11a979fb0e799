"""Losses to pull a pruned network towards the dense teacher."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (the name everyone uses)

from prunerecover.divergence.registry import name_for, output_divergence

WITHOUT_LOGITS = ("detection_map", "cosine")  # structures of outputs


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Return T^2 KL(teacher || student) of softened predictions (Hinton 2015, arXiv 1503.02531), mean over positions.

    Outputs with one value per position are no logits: the result is the squared L2 distance, relative to the squared
    norm of the teacher. Detection maps and embeddings of unit norm are compared as such; see `output_divergence`.

    Args:
        student: Logits `(N, classes)`, `(N, tokens, vocabulary)`, or of pixels, `(N, classes, H, W)`; or such outputs.
        teacher: Output of the same shape.
        temperature: Temperature T.

    Raises:
        ValueError: If the shapes differ.

    >>> distillation_loss(torch.zeros(1, 4), torch.zeros(1, 4)).item()
    0.0
    """
    if student.shape != teacher.shape:
        raise ValueError(
            f"Expected teacher and student to answer alike, but got shapes {tuple(teacher.shape)} and "
            f"{tuple(student.shape)}. Is the teacher the dense version of this network?"
        )
    if name_for(teacher) in WITHOUT_LOGITS:
        return output_divergence(teacher, student)
    if student.ndim == 4:  # classes in dimension 1, as in `cross_entropy`
        student, teacher = student.movedim(1, -1), teacher.movedim(1, -1)
    if student.shape[-1] == 1 or student.ndim == 1:
        return (student - teacher).square().sum() / teacher.square().sum().clamp_min(torch.finfo(torch.float32).tiny)
    log_p = (teacher.float() / temperature).log_softmax(-1).flatten(0, -2)
    log_q = (student.float() / temperature).log_softmax(-1).flatten(0, -2)
    return temperature**2 * F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def feature_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared error of hidden states `(N, ..., C)` relative to the mean square of the teacher."""
    return F.mse_loss(student.float(), teacher.float()) / teacher.float().square().mean().clamp_min(1e-12)
