"""Losses against targets drawn from a network's own output, to score units without labels.

The gradient of a divergence is zero at the dense network itself. A loss against samples of the network's own
probabilities has no such flaw: its squared gradients have the curvature of the divergence as their mean (the Fisher
information), so a unit scores high if the objects, boxes or classes, or the embedding, depend on it.

Logits have labels as targets; detection maps, at every place, an object or none, and the box and class of an object;
embeddings, compared by their angle, a Gaussian step away from each; all other outputs random signs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.calibration.token_weights import drawn_log_likelihood
from prunerecover.divergence.detection_map import layout_of
from prunerecover.divergence.detections import Detections, spread_of, terms_of
from prunerecover.divergence.outputs import Outputs, compared, tensors_of, unpadded
from prunerecover.divergence.registry import chosen_divergence, name_for
from prunerecover.divergence.terms import LEAST
from prunerecover.importance.measuring.losses import Loss, reads_text, supervised_loss, text_loss
from prunerecover.model.batches import ModelInputs, as_inputs, call, split_labels, without_labels
from prunerecover.model.evaluation import evaluating


def drawn_loss(model: nn.Module, batch: Any, *, seed: int = 0) -> Tensor:
    """Return the divergence from objects drawn from the model's own output, a differentiable scalar.

    Args:
        model: Network with a detection map as output.
        batch: Batch with or without labels; labels are not read.
        seed: Seed of the draws.
    """
    output = compared(call(model, as_inputs(batch)))
    assert isinstance(output, Tensor), "see draws_for"
    layout = layout_of(output.detach())
    assert layout is not None, "see draws_for"
    own = layout.detections(output, exclusive=layout.exclusive(output))
    still = own.reshaped(Tensor.detach)
    terms = terms_of(drawn(still, seed), own, spread_of(still))
    return (torch.stack([*terms.values()]).sum((0, 2)) / still.objects.sum(1).clamp_min(1)).mean()


def drawn_direction_loss(model: nn.Module, batch: Any, *, seed: int = 0) -> Tensor:
    """Return the projection of a model's embeddings on Gaussian directions, summed over positions.

    The mean of its squared gradients over draws is the curvature of the cosine divergence.

    Args:
        model: Network with embeddings as output.
        batch: Batch with or without labels; labels are not read.
        seed: Seed of the draws.
    """
    inputs, outputs = _outputs(model, batch)
    generator = torch.Generator().manual_seed(seed)
    noise = [torch.randn(one.shape, generator=generator).to(one) for one in outputs]
    found = [(F.normalize(one, dim=-1) * step).sum() for one, step in zip(outputs, noise, strict=True)]
    return torch.stack(found).sum() / inputs.n_samples


def drawn_label_loss(model: nn.Module, batch: Any, *, seed: int = 0) -> Tensor:
    """Return the negative log-likelihood of labels drawn from the model's own logits, per sample, in nats.

    Args:
        model: Network with logits as output; see `drawn_log_likelihood` for other outputs.
        batch: Batch with or without labels; labels are not read.
        seed: Seed of the draws.
    """
    inputs, outputs = _outputs(model, batch)
    generator = torch.Generator().manual_seed(seed)
    return -torch.stack([drawn_log_likelihood(one, generator) for one in outputs]).sum() / inputs.n_samples


def _outputs(model: nn.Module, batch: Any) -> tuple[ModelInputs, list[Tensor]]:
    """Return the inputs of a batch without labels, and the compared outputs without padding."""
    inputs = as_inputs(without_labels(batch, model))
    return inputs, [*tensors_of(unpadded(compared(call(model, inputs)), inputs)).values()]


@torch.no_grad()
def drawn(own: Detections, seed: int) -> Detections:
    """Return detections drawn from probabilities: an object at a place or none, with a box and classes.

    Args:
        own: Detections; boxes are drawn around the network's, from the Gaussian whose likelihood is the squared error.
        seed: Seed of the draws.
    """
    generator = torch.Generator(own.objects.device).manual_seed(seed)
    objects = torch.bernoulli(own.objects.clamp(0, 1), generator=generator)
    noise = torch.randn(own.boxes.shape, generator=generator, device=own.boxes.device)
    boxes = own.boxes + (spread_of(own) * own.boxes.shape[-1] / 2).sqrt() * noise
    if own.exclusive:
        number = torch.multinomial(own.classes.clamp_min(LEAST).flatten(0, 1), 1, generator=generator)
        classes = F.one_hot(number.view(own.objects.shape), own.classes.shape[-1]).to(own.classes)
    else:
        classes = torch.bernoulli(own.classes.clamp(0, 1), generator=generator)
    return replace(own, objects=objects, boxes=boxes, classes=classes)


def draws_objects(model: nn.Module, example: ModelInputs) -> bool:
    """Whether the output of a model is a detection map, so that `drawn_loss` scores its units."""
    return _is_map(_output(model, example))


def usual_loss(model: nn.Module, example: ModelInputs, batch: Any, seed: int) -> Loss:
    """Return the default loss for scores: of labels, of the next tokens of texts, or else of drawn targets.

    Detection maps have drawn objects always: labels are few in an image, and objects are drawn at every place.

    Args:
        model: Network.
        example: Inputs of a sample.
        batch: Batch of a user.
        seed: Seed of the draws.
    """
    output = _output(model, example)
    if _is_map(output):
        return partial(drawn_loss, seed=seed)
    try:
        split_labels(batch)
    except TypeError:
        if (chosen_divergence() or name_for(output)) == "cosine":
            return partial(drawn_direction_loss, seed=seed)
        return text_loss if reads_text(model, example, output) else partial(drawn_label_loss, seed=seed)
    return supervised_loss


def _output(model: nn.Module, example: ModelInputs) -> Outputs:
    """Return the compared output of a sample."""
    with evaluating(model):
        return compared(call(model, example))


def _is_map(output: Outputs) -> bool:
    return isinstance(output, Tensor) and layout_of(output) is not None
