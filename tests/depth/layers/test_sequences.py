"""Random sequences of removals in many architectures: what is left runs, learns, and comes back from a file exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases.depth.architectures import ARCHITECTURES, quick_or_slow
from cases.depth.removal import learns, outputs, pruned, random_sequence, removals_of, size
from cases.sampling import one_in

from prunerecover import Plan
from prunerecover.model.copies import deep_copy
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.provenance import plan_for

SEEDS = 10


@pytest.mark.parametrize("seed", one_in(5, range(SEEDS)))
@pytest.mark.parametrize("name", quick_or_slow())
def test_random_sequence_leaves_a_network_that_a_file_makes_again(name: str, seed: int, tmp_path: Path) -> None:
    model, batch = ARCHITECTURES[name]()
    removals = removals_of(model, batch)
    units = random_sequence(removals, 5, seed)
    edits = removals.edits(units)
    left = pruned(removals, units)
    learns(left, removals.example)
    if all(unit.kind == "layer" for unit in units):
        assert size(left) == removals.after(tuple(unit.name for unit in units)).parameters()
    plan_for(model, edits, method="test").save(tmp_path / "plan.json")
    again = deep_copy(model)
    apply_edits(again, Plan.load(tmp_path / "plan.json").edits)
    assert {n: p.shape for n, p in again.named_parameters()} == {n: p.shape for n, p in left.named_parameters()}
    with torch.no_grad():
        made, loaded = outputs(left, removals.example), outputs(again.eval(), removals.example)
    assert all(torch.equal(a, b) for a, b in zip(made, loaded, strict=True))
