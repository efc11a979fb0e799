"""Batches of every form reach the model alike, and logits are found in outputs of every form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from prunerecover.model import batches as b


def test_batches_of_every_form_reach_the_model_alike() -> None:
    x, y = torch.randn(4, 3), torch.zeros(4)
    net = nn.Linear(3, 2)
    forms: list[Any] = [
        x,
        (x, y),
        [x, y],
        {"input": x},
        b.ModelInputs((x,)),
        ({"input": x}, y),
        (b.ModelInputs((x,)), y),
    ]
    assert all(torch.equal(b.call(net, b.as_inputs(form)), net(x)) for form in forms)
    assert all(b.as_inputs(form).n_samples == 4 for form in forms)


@pytest.mark.parametrize("bad", ["text", 3, None, (), ("a", "b")])
def test_other_forms_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="Expected each batch to be a tensor, a tuple"):
        b.as_inputs(bad)


def test_selecting_samples_leaves_unbatched_tensors_alone() -> None:
    inputs = b.ModelInputs((torch.arange(6).view(3, 2),), {"scale": torch.tensor(2.0), "table": torch.zeros(5), "n": 1})
    chosen = inputs.select(torch.tensor([2, 0]))
    assert chosen.args[0].tolist() == [[4, 5], [0, 1]]
    assert chosen.kwargs["table"].shape == (5,)
    assert chosen.kwargs["n"] == 1


def test_lists_of_images_are_batched_along_the_list() -> None:
    images, targets = [torch.randn(3, 8, 8), torch.randn(3, 6, 8)], [{"boxes": torch.zeros(i, 4)} for i in (2, 5)]
    forms: list[Any] = [(images, targets), (images,), (tuple(images), tuple(targets)), [images]]
    assert all(b.as_inputs(form).args[0][1] is images[1] for form in forms)
    assert all(b.as_inputs(form).n_samples == 2 for form in forms)
    assert b.as_inputs((targets,)).n_samples == 2
    inputs = b.ModelInputs((images, targets), {"scale": torch.ones(3, 1)})
    assert inputs.n_samples == 2
    assert b.ModelInputs(([torch.randn(4, 3, 8, 8), torch.randn(4, 3, 4, 4)],)).n_samples == 4, "maps of two scales"
    second = inputs.select(torch.tensor([1]))
    assert second.args[0][0] is images[1]
    assert second.args[1] == [targets[1]]
    assert second.kwargs["scale"].shape == (3, 1)


def test_logits_are_found_in_outputs_of_every_form() -> None:
    logits, other = torch.randn(2, 3), torch.zeros(2, dtype=torch.long)
    for output in (logits, {"logits": logits}, {"last_hidden_state": logits}, (other, logits), {"x": logits}):
        assert b.logits_of(output) is logits
    assert torch.equal(b.predictions_of((logits, 3 * logits)), 2 * logits)
    with pytest.raises(TypeError, match="output to hold a floating-point tensor, but got tuple"):
        b.logits_of((other,))


def test_padding_is_cut_from_logits() -> None:
    output = torch.randn(2, 3, 5)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    padded = b.ModelInputs(kwargs={"input_ids": torch.zeros(2, 3), "attention_mask": mask})
    assert torch.equal(b.without_padding(output, padded), output[mask.bool()])
    assert b.without_padding(output, b.ModelInputs((output,))) is output
    assert b.without_padding(output[:, 0], padded).shape == (2, 5)


def test_an_encoder_decoder_makes_its_inputs_of_labels() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    from prunerecover import find_groups

    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 31}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()
    batch = {"input_ids": torch.randint(1, 31, (2, 5)), "labels": torch.randint(1, 31, (2, 4))}
    assert b.without_labels(batch, model) is batch
    assert "labels" not in b.without_labels({**batch, "decoder_input_ids": batch["labels"]}, model)
    assert "labels" not in b.without_labels(batch)
    assert {group.size for group in find_groups(model, batch, kinds=("neuron",)).groups} == {32}
