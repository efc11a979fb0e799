"""Every method of the benchmark of sentences prunes a small BERT, without labels and within its budget."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases.models.tiny import tiny_bert
from scipy.stats import spearmanr
from torch import Tensor

from benchmarks.data.minilm import Embedder
from benchmarks.language import sentences
from benchmarks.runner.plans import pruned


def batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(8, 6, dtype=torch.long)
    mask[::2, 4:] = 0
    return [{"input_ids": torch.randint(4, 60, (8, 6), generator=generator), "attention_mask": mask} for _ in range(3)]


NAMES = (*sentences.BY_BLOCKS, *sentences.BY_SHARE)
METHODS = [pytest.param(n, marks=[pytest.mark.slow] if n.startswith("plan_") else []) for n in NAMES]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_takes_a_block_s_parameters_out(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, how = sentences.BY_SHARE.get(method, (None, {}))
    if "store" in how:
        monkeypatch.setitem(sentences.BY_SHARE, method, (call, {}))
    model = Embedder(tiny_bert(num_hidden_layers=3).bert).eval()
    plan = sentences.plan_of(method, model, batches(), 1)
    block = sum(p.numel() for p in model.bert.encoder.layer[0].parameters())
    other = pruned(model, plan)
    gone = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in other.parameters())
    assert gone >= block - 33 * 32  # a map in the place of the block
    assert method != "last blocks" or plan.removed == {"block": ("bert.encoder.layer.2",)}
    assert torch.allclose(other(**batches()[0]).norm(dim=-1), torch.ones(8))


def test_rank_correlation_is_spearman_s() -> None:
    dense, other = (torch.nn.functional.normalize(torch.randn(9, 4), dim=-1) for _ in range(2))
    rank, cosine, nearest = sentences.similarity(dense, other)
    alike = [np.delete((own @ own.T).numpy()[4], 4) for own in (dense, other)]
    assert rank[4] == pytest.approx(spearmanr(*alike).statistic)
    assert cosine[4] == pytest.approx(float(dense[4] @ other[4]), abs=1e-6)
    assert nearest[4] == (alike[0].argmax() == alike[1].argmax())
