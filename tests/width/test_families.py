"""A family gives up 30% of its MACs by a plan, can be trained on, and is the same model in a new process.

Every second one; `python -m benchmarks.zoo.zoo --kind width` does the same with every network.
"""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from cases.models.families import FAMILIES, family, reloaded, squares
from cases.width.groups import outputs

from prunerecover import Budget, apply_plan, plan_width, save_pruned
from prunerecover.cost.macs import count_macs
from prunerecover.model.batches import as_inputs

SECONDS = 60


@pytest.fixture(scope="module")
def new_process() -> Iterator[ProcessPoolExecutor]:
    """One for all families: most of what a process needs is the time to import."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        yield executor


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FAMILIES][::2])
def test_a_family_gives_up_30_percent_and_is_reloaded(
    name: str, tmp_path: Path, new_process: ProcessPoolExecutor
) -> None:
    model, inputs = family(name)
    example = as_inputs(inputs).select(torch.tensor([0]))
    dense = count_macs(model, example)
    start = time.process_time()
    plan = plan_width(model, Budget(macs=0.3), batches=[inputs], loss=squares)
    assert time.process_time() - start < SECONDS
    apply_plan(model, plan)
    assert plan.result.macs == count_macs(model, example)
    assert 0.3 <= 1 - plan.result.macs / dense < 0.31
    squares(model, inputs).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)
    with torch.no_grad():
        given = outputs(model, inputs)
    assert all(tensor.isfinite().all() for tensor in given)
    save_pruned(model, plan, tmp_path / "pruned")
    again = new_process.submit(reloaded, name, tmp_path / "pruned").result()
    shutil.rmtree(tmp_path)  # hundreds of megabytes
    assert len(again) == len(given)
    assert all(np.array_equal(one, other.numpy()) for one, other in zip(again, given, strict=True))
