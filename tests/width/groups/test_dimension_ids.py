"""Parts of the search for groups: ids, maps, even layouts, and copies of models that capture their states."""

from __future__ import annotations

import torch
from cases.models import tiny
from torch import nn

from prunerecover.model.copies import share_copy


def test_copies_of_models_that_have_run_still_capture_hidden_states() -> None:
    """Transformers installs hooks for hidden states once, and a copy starts without hooks."""
    model: nn.Module = tiny.tiny_llama()
    inputs = tiny.tiny_inputs("llama")
    states = model(**inputs, output_hidden_states=True).hidden_states
    again = share_copy(model)(**inputs, output_hidden_states=True).hidden_states
    assert len(again) == len(states) == 5
    assert all(torch.equal(a, b) for a, b in zip(again, states, strict=True))
