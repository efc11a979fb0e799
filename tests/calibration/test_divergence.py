"""The divergence of outputs equals torch's, and the plain formula for maps."""

from __future__ import annotations

import pytest
import torch

from prunerecover.calibration.divergence import output_divergence


def test_divergence_equals_torch_kl() -> None:
    dense, pruned = torch.randn(6, 5), torch.randn(6, 5)
    oracle = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=dense), torch.distributions.Categorical(logits=pruned)
    )
    assert output_divergence(dense, pruned).item() == pytest.approx(oracle.mean().item(), rel=1e-5)
    folded = output_divergence(dense.view(2, 3, 5), pruned.view(2, 3, 5)).item()
    assert folded == pytest.approx(oracle.mean().item(), rel=1e-5)


def test_divergence_of_maps_and_single_values_is_relative() -> None:
    for shape in ((2, 3, 4, 4), (5, 1), (5,)):
        dense, pruned = torch.randn(shape), torch.randn(shape)
        expected = ((dense - pruned).square().sum() / dense.square().sum()).item()
        assert output_divergence(dense, pruned).item() == pytest.approx(expected, rel=1e-5)
    assert output_divergence(torch.zeros(3), torch.zeros(3)).item() == 0


def test_outputs_whose_number_follows_the_data_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"of shape \(3, 4\), as the dense network's, but got \(2, 4\)"):
        output_divergence(torch.zeros(3, 4), torch.zeros(2, 4))
