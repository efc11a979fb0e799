"""Files for clocks compute the outputs of the network, by either way of writing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases.models.tiny import tiny_bert
from cases.planning.networks import cnn, images, vit
from torch import Tensor, nn

from prunerecover.model.batches import as_inputs, call
from prunerecover.runtimes import timed_file
from prunerecover.runtimes.timed_file import write_to_time

onnxruntime = pytest.importorskip("onnxruntime")


def outputs(path: Path, named: dict[str, Tensor]) -> list[Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    taken = {entry.name for entry in session.get_inputs()}
    return list(session.run(None, {name: value.numpy() for name, value in named.items() if name in taken}))


@pytest.mark.parametrize("make", [cnn, vit])
def test_a_traced_file_computes_the_outputs_of_the_network(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_file, "export", None)
    network, batch = make().eval(), images()[0][0]
    name = "images" if make is vit else "input"
    (found,) = outputs(write_to_time(network, tmp_path / "network.onnx", as_inputs(batch)), {name: batch})
    with torch.no_grad():
        assert np.allclose(found, network(batch).numpy(), atol=1e-4)


def test_a_traced_file_names_the_inputs_of_a_language_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_file, "export", None)
    network, tokens = tiny_bert().eval(), torch.arange(4, 16).view(2, 6)
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    found = outputs(write_to_time(network, tmp_path / "network.onnx", as_inputs(batch)), batch)
    with torch.no_grad():
        assert np.allclose(found[0], call(network, as_inputs(batch))[0].numpy(), atol=1e-4)


class Fickle(nn.Module):
    """Network with another result in the tracer of TorchScript."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, larger by one in the tracer."""
        found: Tensor = self.linear(x) + float(torch.onnx.is_in_onnx_export())
        return found


def test_a_network_traced_wrongly_is_exported_with_the_right_outputs(tmp_path: Path) -> None:
    network, batch = Fickle().eval(), torch.randn(2, 3)
    (found,) = outputs(write_to_time(network, tmp_path / "network.onnx", as_inputs(batch)), {"x": batch})
    with torch.no_grad():
        assert np.allclose(found, network(batch).numpy(), atol=1e-5)
