"""Export of a whole network, neck and head included: as ONNX, or as a program of `torch.export`.

Any number of inputs, by their names in the network's forward; batches of any size, and token sequences of any length.
What is written is run once and compared with the network. A folder with safetensors is what `save_pruned` writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.files.atomic import atomic_file
from prunerecover.model.batches import ModelInputs, as_inputs, call, without_labels, without_padding
from prunerecover.model.checks import warn_unless_finite
from prunerecover.model.evaluation import device_of, evaluating
from prunerecover.model.paths import unwrap

FORMATS = (".onnx", ".pt2")
TOLERANCE = 1e-3
FALLBACK = "images"  # the name of images that forward calls x


def export(model: nn.Module, path: str | Path, example_inputs: Any) -> Path:
    """Write a network as ONNX (`.onnx`) or as a program of `torch.export` (`.pt2`), and check what was written.

    Args:
        model: With all that is to be exported; a LightningModule where its forward is. It is not changed.
        path: File to write; folders on the way are made.
        example_inputs: What the model is called with, on any device: a tensor, a tuple of input and labels, a mapping
            of keyword arguments, as batches of calibration. The first dimension of every tensor is the batch; the
            second one of tokens `(N, T)` is free, too. Other sizes stay as they are here.

    Returns:
        The path. ONNX inputs are named as in forward, outputs by their keys; a loaded program takes tensors in order.

    Raises:
        ValueError: If the path has another ending, the model cannot be traced, or the file computes something else.
    """
    path, network = Path(path), unwrap(model)
    if path.suffix not in FORMATS:
        raise ValueError(
            f"Expected a path that ends in {' or '.join(FORMATS)}, but got '{path}'. A folder with safetensors is "
            "what save_pruned(model, plan, folder) writes."
        )
    inputs = _of_two(as_inputs(without_labels(example_inputs, network))).to(device_of(network))
    warn_unless_finite(network, path)
    with evaluating(network):
        named = _NamedInputs(network, inputs)
        wanted = named(*named.tensors)
        program = _traced(named)
        with atomic_file(path) as unfinished:
            _write(program, unfinished, path.suffix, named.names, list(wanted))
            _check(unfinished, path.suffix, named, wanted, inputs)
    return path


class _NamedInputs(nn.Module):
    """A network that takes its tensors in order, and gives a mapping of those that it computes.

    Args:
        network: In evaluation mode.
        inputs: An example.
    """

    def __init__(self, network: nn.Module, inputs: ModelInputs) -> None:
        super().__init__()
        self.network = network
        given = dict(zip(_parameters(network), inputs.args, strict=False)) | inputs.kwargs
        self.tensors = [value for value in given.values() if isinstance(value, Tensor)]
        self.arguments = [name for name, value in given.items() if isinstance(value, Tensor)]
        self.constant = {name: value for name, value in given.items() if not isinstance(value, Tensor)}
        if getattr(getattr(network, "config", None), "use_cache", False):
            self.constant["use_cache"] = False  # what decoders keep for the next token is no output

    @property
    def names(self) -> list[str]:
        """Of the inputs in the file."""
        pairs = zip(self.arguments, self.tensors, strict=True)
        return [FALLBACK if len(name) == 1 and tensor.ndim == 4 else name for name, tensor in pairs]

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """Return what the network computes, by name."""
        given = dict(zip(self.arguments, tensors, strict=True))
        output = call(self.network, ModelInputs(kwargs={**given, **self.constant}))
        if isinstance(output, Tensor):
            return {"output": output}
        found = output if isinstance(output, Mapping) else {f"output_{i}": value for i, value in enumerate(output)}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _parameters(network: nn.Module) -> list[str]:
    return list(inspect.signature(network.forward).parameters)


def _of_two(inputs: ModelInputs) -> ModelInputs:
    """Return two samples or more: a batch of one would be taken for fixed."""
    return inputs if inputs.n_samples > 1 else inputs.select(torch.tensor([0, 0]))


def _traced(named: _NamedInputs) -> Any:
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=1)
    shapes = tuple(
        {0: batch, 1: length} if tensor.ndim == 2 and not tensor.is_floating_point() else {0: batch}
        for tensor in named.tensors
    )
    try:
        return torch.export.export(named, tuple(named.tensors), dynamic_shapes={"tensors": shapes})
    except Exception as error:  # whatever the network's own code raises
        raise ValueError(
            f"Expected a network that torch.export can trace with batches of any size, but "
            f"{type(named.network).__name__} is none ({type(error).__name__}: {str(error).strip().splitlines()[0]}). "
            "Export the part of it that computes tensors from tensors."
        ) from error


def _write(program: Any, path: Path, ending: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    if ending == ".pt2":
        with path.open("wb") as file:
            torch.export.save(program, file)
        return
    written = torch.onnx.export(
        program, dynamo=True, input_names=list(inputs), output_names=list(outputs), external_data=False, verbose=False
    )
    assert written is not None, "dynamo=True returns the program"
    written.save(str(path))


def _check(path: Path, ending: str, named: _NamedInputs, wanted: Mapping[str, Tensor], inputs: ModelInputs) -> None:
    """Run the file on the example; ONNX only where onnxruntime is installed.

    Raises:
        ValueError: If an output differs by more than 0.001, relative or absolute; padded tokens do not count.
    """
    if ending == ".onnx" and not find_spec("onnxruntime"):
        return
    found = _run_onnx(path, named) if ending == ".onnx" else _run_program(path, named)
    for name, value in wanted.items():
        one, other = (without_padding(tensor.cpu(), inputs) for tensor in (found[name], value))
        if not torch.allclose(one.float(), other.float(), atol=TOLERANCE, rtol=TOLERANCE):
            most = (one.float() - other.float()).abs().max()
            raise ValueError(
                f"Expected the exported network to compute what the model does, but its output '{name}' differs by up "
                f"to {float(most):.3g}. Nothing was written. Export in float32, or the other of {', '.join(FORMATS)}."
            )


def _run_onnx(path: Path, named: _NamedInputs) -> dict[str, Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    given = {name: tensor.cpu().numpy() for name, tensor in zip(named.names, named.tensors, strict=True)}
    names = [output.name for output in session.get_outputs()]
    kept = {entry.name for entry in session.get_inputs()}
    values = session.run(None, {name: value for name, value in given.items() if name in kept})
    return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}


def _run_program(path: Path, named: _NamedInputs) -> dict[str, Tensor]:
    with path.open("rb") as file:
        return torch.export.load(file).module()(*named.tensors)  # type: ignore[no-any-return]
