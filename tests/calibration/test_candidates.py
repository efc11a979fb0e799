"""Fits of branches with a scale before the addition, or beside another branch, aim at the next stream."""

from __future__ import annotations

import pytest
import torch
from cases.models.decoders import DECODERS

from prunerecover.calibration.candidates import BranchFit
from prunerecover.families.describe import describe


@pytest.mark.parametrize(
    ("name", "kind", "scale", "beside"),
    [("granite", "attention", 0.3, False), ("granite", "mlp", 0.3, False), ("gpt_neox", "attention", 1.0, False)]
    + [(name, "mlp", 1.0, True) for name in ("gpt_neox", "phi", "stablelm_parallel")],
)
def test_constant_leads_to_the_dense_stream(name: str, kind: str, scale: float, beside: bool) -> None:
    branch = getattr(describe(DECODERS[name].build()).blocks[1], kind)
    stream, other, constant = torch.randn(2, 5, 32), torch.randn(2, 5, 32), torch.randn(32)
    seen = {f"{branch.stream}.in": stream, f"{branch.path}.in": torch.randn(2, 5, 32)}
    if beside:  # what the attention adds first is no drift that the MLP has to make up for
        assert branch.beside is not None
        seen[f"{branch.beside}.out"] = other
        stream = stream + other
    fit = BranchFit(branch)
    fit.add(seen, stream + scale * constant, torch.ones(2, 5))
    found = next(candidate for candidate in fit.candidates() if candidate.leaves == "constant")
    torch.testing.assert_close(found.values["bias"].float(), constant, atol=1e-4, rtol=0)
