"""Samples are known again by all that a network is called with for them."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from prunerecover.callbacks.distillation.sample_keys import sample_keys
from prunerecover.model.batches import ModelInputs


def test_padding_on_the_left_makes_another_sample() -> None:
    """Where positions are counted from the first token, so are answers."""
    ids = torch.arange(1, 7).view(1, 6)
    masks = [torch.tensor([[0] * left + [1] * 4 + [0] * (2 - left)]) for left in range(3)]
    keys = [
        sample_keys(ModelInputs(kwargs={"input_ids": ids.roll(left, 1), "attention_mask": mask}))[0]
        for left, mask in enumerate(masks)
    ]
    assert len(set(keys)) == 3


def test_samples_differ_in_all_that_the_network_is_called_with() -> None:
    x = torch.arange(6.0).view(2, 3)
    calls = [
        ModelInputs((x,)),
        ModelInputs((x.double(),)),
        ModelInputs((x[:, None],)),
        ModelInputs((x, True)),
        ModelInputs(kwargs={"x": x}),
        ModelInputs((x,), {"mask": x > 2}),
    ]
    keys = [key for inputs in calls for key in sample_keys(inputs)]
    assert len(set(keys)) == len(keys)
    assert sample_keys(ModelInputs((x.flip(0),))) == sample_keys(calls[0])[::-1]


def test_lists_of_images_are_samples() -> None:
    images = [torch.randn(3, 4, 5), torch.randn(3, 6, 7)]
    first, second = sample_keys(ModelInputs((images,)))
    assert sample_keys(ModelInputs((images[::-1],))) == [second, first]


def test_inputs_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(TypeError, match=r"called with tensors and plain values, but got TensorDataset"):
        sample_keys(ModelInputs((torch.randn(4, 6),), {"data": TensorDataset(torch.zeros(4))}))
