"""Groups of a few units are told apart by what code does with them, as larger ones are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from cases.sampling import one_in

from prunerecover import Budget, apply_plan, find_groups, plan_width

IDS = torch.randint(1, 60, (4, 9), generator=torch.Generator().manual_seed(0))
TEXT = {"input_ids": IDS, "decoder_input_ids": IDS}


def t5(heads: int) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_decoder_layers": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, num_heads=heads)).eval()


@pytest.mark.slow
@pytest.mark.parametrize("heads", one_in(5, [2, 3, 4, 5, 8]))
def test_attentions_that_share_a_position_bias_are_one_group(heads: int) -> None:
    """Cross-attentions add one tensor of zeros, made by the first for as many heads as it has."""
    model = t5(heads)
    groups = find_groups(model, TEXT, ("head",)).groups
    (crossing,) = (group for group in groups if "EncDec" in group.name)
    assert {part.tensor.split(".")[2] for part in crossing.slices} == {"0", "1"}  # both blocks
    assert len(groups) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "share"), one_in(3, [(4, 0.2), (2, 0.4), (3, 0.4)]))
def test_plans_of_few_heads_run(heads: int, share: float) -> None:
    model = t5(heads)
    settings: Any = {"importance": "magnitude", "replace": "zero"}
    apply_plan(model, plan_width(model, Budget(ratio={"head": share}), batches=[TEXT], **settings))
    assert model(**TEXT).logits.isfinite().all()
