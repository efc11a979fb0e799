"""Outputs are compared by their structure, by name, or by a function; equal outputs have divergence 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from prunerecover.divergence.measure import divergence_by_sample, mean_divergence
from prunerecover.divergence.outputs import Outputs, Parts, comparable, compared
from prunerecover.divergence.registry import (
    DIVERGENCES,
    comparing_by,
    name_for,
    output_divergence,
    output_parts,
    register_divergence,
)
from prunerecover.model.batches import ModelInputs


def test_divergence_equals_torch_kl() -> None:
    dense, pruned = torch.randn(6, 5), torch.randn(6, 5)
    oracle = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=dense), torch.distributions.Categorical(logits=pruned)
    )
    assert output_divergence(dense, pruned).item() == pytest.approx(oracle.mean().item(), rel=1e-5)
    folded = output_divergence(dense.view(2, 3, 5), pruned.view(2, 3, 5)).item()
    assert folded == pytest.approx(oracle.mean().item(), rel=1e-5)
    pixels = {"logits": torch.randn(2, 3, 4, 5)}, {"logits": torch.randn(2, 3, 4, 5)}
    rows = [one["logits"].permute(0, 2, 3, 1).flatten(0, 2) for one in pixels]
    assert output_divergence(*map(compared, pixels)).item() == pytest.approx(output_divergence(*rows).item(), rel=1e-5)


def test_logits_maps_and_single_values_are_compared_to_the_bit_as_before() -> None:
    dense, pruned = torch.randn(6, 5), torch.randn(6, 5)
    p, q = dense.log_softmax(-1), pruned.log_softmax(-1)
    assert torch.equal(output_divergence(dense, pruned), (p.exp() * (p - q)).sum(-1).sum() / 6)
    for shape in ((2, 3, 4, 4), (5, 1), (5,)):
        dense, pruned = torch.randn(shape), torch.randn(shape)
        assert torch.equal(output_divergence(dense, pruned), (dense - pruned).square().sum() / dense.square().sum())
    assert output_divergence(torch.zeros(3), torch.zeros(3)).item() == 0


def fastestdet(n: int = 2) -> Tensor:
    boxes = torch.randn(n, 4, 6, 6)
    return torch.cat([torch.rand(n, 1, 6, 6), boxes, torch.randn(n, 7, 6, 6).softmax(1)], 1)


def yolo(n: int = 2) -> Tensor:
    return torch.cat([640 * torch.rand(n, 4, 50), torch.rand(n, 7, 50)], 1)


STRUCTURES: dict[str, tuple[Any, str]] = {
    "classes": (torch.randn(2, 5), "logits"),
    "tokens": ({"logits": torch.randn(2, 4, 5)}, "logits"),
    "a map": (torch.randn(2, 5, 4, 4), "relative"),
    "heads that are averaged": ((torch.randn(2, 5), torch.randn(2, 5)), "logits"),
    "heads of other sizes": ((torch.randn(2, 5), torch.randn(2, 3)), "heads"),
    "maps of several scales": ([torch.randn(2, 5, 8, 8), torch.randn(2, 5, 4, 4)], "heads"),
    "classes and features": ((torch.randn(2, 5), torch.randn(2, 5, 4, 4)), "logits"),
    "a cell and its classes": (fastestdet(), "detection_map"),
    "YOLO's places": (yolo(), "detection_map"),
    "YOLO's places beside its maps": ((yolo(), [torch.randn(2, 5, 8, 8)]), "detection_map"),
    "places before channels": (yolo().transpose(1, 2), "detection_map"),
    "queries": ({"logits": torch.randn(2, 6, 4), "pred_boxes": torch.rand(2, 6, 4)}, "detection_set"),
    "what a detector has picked": (
        [{"boxes": 99 * torch.rand(n, 4), "labels": torch.arange(n) % 3, "scores": torch.rand(n)} for n in (3, 0, 2)],
        "picked_detections",
    ),
    "classes of pixels": ({"logits": torch.randn(2, 5, 4, 4)}, "dense_prediction"),
    "torchvision's pixels": ({"out": torch.randn(2, 5, 4, 4), "aux": torch.randn(2, 5, 4, 4)}, "dense_prediction"),
    "depths": ({"predicted_depth": torch.rand(2, 4, 4)}, "relative"),
    "hidden states": ({"last_hidden_state": torch.randn(2, 4, 5), "pooler_output": torch.randn(2, 5)}, "cosine"),
    "embeddings": ({"logits_per_image": torch.randn(2, 2), "image_embeds": torch.randn(2, 5)}, "cosine"),
    "embeddings of unit norm": (torch.nn.functional.normalize(torch.randn(2, 5)), "cosine"),
    "probabilities of one class": (torch.eye(2, 5), "logits"),
    "a sentence": ({"token_embeddings": torch.randn(2, 4, 5), "sentence_embedding": torch.randn(2, 5)}, "cosine"),
    "spans": ({"start_logits": torch.randn(2, 4), "end_logits": torch.randn(2, 4)}, "heads"),
    "tasks by name": ({"depth": torch.randn(2, 1, 4, 4), "classes": torch.randn(2, 3)}, "heads"),
}


@pytest.mark.parametrize("what", STRUCTURES)
def test_structure_tells_what_is_compared_and_equal_outputs_are_at_0(what: str) -> None:
    output, name = STRUCTURES[what]
    found = compared(output)
    assert name_for(found) == name
    assert output_divergence(found, found).item() == pytest.approx(0, abs=1e-6)
    other = found.each(torch.rand_like) if isinstance(found, Parts) else torch.rand_like(found)
    assert output_divergence(found, other).item() > 1e-3


@pytest.mark.parametrize("what", STRUCTURES)
def test_divergence_is_learnt_from(what: str) -> None:
    dense = compared(STRUCTURES[what][0])

    def moved(tensor: Tensor) -> Tensor:
        return (tensor + 0.1 * torch.rand_like(tensor)).requires_grad_()

    pruned = dense.each(moved) if isinstance(dense, Parts) else moved(dense)
    named = pruned.tensors if isinstance(pruned, Parts) else {"": pruned}
    leaves = [tensor for name, tensor in named.items() if name != "labels"]
    gradients = torch.autograd.grad(output_divergence(dense, pruned), leaves)
    assert all(gradient.isfinite().all() and gradient.abs().sum() > 0 for gradient in gradients)


def test_heads_count_alike_each_in_its_own_terms() -> None:
    dense, pruned = ({"a": torch.randn(4, 5), "b": torch.randn(4, 1, 3, 3)} for _ in range(2))
    parts = output_parts(compared(dense), compared(pruned))
    assert isinstance(parts, dict)
    for name in dense:
        assert 2 * parts[name].item() == pytest.approx(output_divergence(dense[name], pruned[name]).item(), rel=1e-6)


def test_padded_positions_of_hidden_states_do_not_count() -> None:
    batch = ModelInputs(kwargs={"attention_mask": torch.tensor([[1, 1, 0]])})
    dense, pruned = torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    padded = [compared({"last_hidden_state": each}) for each in (dense, pruned)]
    short = [compared({"last_hidden_state": each[:, :2]}) for each in (dense, pruned)]
    found = mean_divergence([batch], padded[:1], padded[1:])
    assert found == pytest.approx(output_divergence(*short).item(), rel=1e-6)


def test_the_mean_over_samples_is_that_of_the_batch() -> None:
    batch = ModelInputs((torch.zeros(3, 1),))
    for dense, pruned in (
        (torch.randn(3, 5), torch.randn(3, 5)),
        (compared({"a": torch.randn(3, 5), "b": torch.randn(3, 2)}),) * 2,
    ):
        parts = divergence_by_sample(batch, dense, pruned)
        assert parts.sum(1).mean() == pytest.approx(mean_divergence([batch], [dense], [pruned]), rel=1e-5, abs=1e-7)
    flat = torch.randn(6, 5), torch.randn(6, 5)  # rows that are no samples
    assert divergence_by_sample(batch, *flat).tolist() == [[output_divergence(*flat).item()]] * 3


def test_a_divergence_can_be_chosen_by_name_or_be_a_function() -> None:
    dense, pruned = torch.randn(4, 5), torch.randn(4, 5)
    with comparing_by("cosine"):
        found = output_divergence(dense, pruned)
        with comparing_by(None):
            assert output_divergence(dense, pruned) == found
        with comparing_by(lambda a, b: (a - b).abs().max()):
            assert output_divergence(dense, pruned) == (dense - pruned).abs().max()
    expected = (1 - torch.cosine_similarity(dense, pruned)).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    assert output_divergence(dense, pruned) != found


def test_names_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunerecover.divergence.registry.DIVERGENCES", dict(DIVERGENCES))

    def largest(dense: Tensor, pruned: Tensor) -> Tensor:
        return (dense - pruned).abs().max()

    register_divergence("largest", largest)
    with comparing_by("largest"):
        assert output_divergence(torch.zeros(2, 3), torch.ones(2, 3)) == 1
    with pytest.raises(ValueError, match="a name that no divergence has, but 'largest' is taken"):
        register_divergence("largest", lambda dense, pruned: dense.sum())
    with pytest.raises(TypeError, match="a word as the name of the divergence, but got ' '"):
        register_divergence(" ", largest)


def test_other_divergences_are_refused() -> None:
    with pytest.raises(ValueError, match="divergence to be one of logits, .*, but got 'l2'"), comparing_by("l2"):
        pass
    with pytest.raises(TypeError, match="a name or a callable .*, but got int"), comparing_by(3):  # type: ignore[arg-type]
        pass


def test_outputs_whose_number_follows_the_data_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"of shape \(3, 4\), as the dense network's, but got \(2, 4\)"):
        output_divergence(torch.zeros(3, 4), torch.zeros(2, 4))
    other: Outputs = compared({"a": torch.zeros(3, 4), "b": torch.zeros(3, 4)})
    with pytest.raises(ValueError, match=r"of shape \(3, 4\), .* but got \{'a': \(3, 4\), 'b': \(3, 4\)\}"):
        output_divergence(torch.zeros(3, 4), other)
    assert comparable(other, 3)
    assert not comparable(other, 4)
