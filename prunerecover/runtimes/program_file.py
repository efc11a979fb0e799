"""Files of a traced network, including neck and head: ONNX, or a program of `torch.export`.

A file takes any number of inputs, named as in the network's forward; batches of any size and token sequences of any
length, or only the sizes of the example. The written file is run once and compared with the network.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.model.batches import ModelInputs, without_padding
from prunerecover.model.checks import called_with
from prunerecover.model.evaluation import evaluating, inputs_of
from prunerecover.refusal import Refusal
from prunerecover.runtimes.named_network import NamedNetwork, names_beside, plain_products

ENDINGS = (".onnx", ".pt2")
TOLERANCE = 1e-3
PART = "Export the part of it that computes tensors from tensors."
OTHER_FORMAT = (
    "Write a program of torch.export, a path that ends in .pt2, or export the part of it that can be converted."
)
IN_FULL = f"Nothing was written. Export in float32, or the other of {', '.join(ENDINGS)}."
NO_OTHER_SIZE = (  # messages of torch.export on networks with a single allowed size, and on sizes of 1, taken for fixed
    re.compile(r"\['tensors'\]\[(?P<tensor>\d+)\]\.size\(\)\[(?P<dimension>\d+)\] .*constant \((?P<size>\d+)\)"),
    re.compile(r"of (?P<size>\d+) for dimension .*\['tensors\D+(?P<tensor>\d+)\D+\.shape\[(?P<dimension>\d+)\]"),
)
FIXED_SIZES = "With the sizes of the example it is exported: pass dynamic=False (--fixed-sizes on the command line)."


def write_program(network: nn.Module, path: Path, example_inputs: Any, dynamic: bool) -> None:
    """Write a network as ONNX (`.onnx`) or as a program (`.pt2`), and check the file.

    Args:
        network: Network to export, without wrappers; not changed.
        path: File to write; the ending is the format.
        example_inputs: Batch in any form of a calibration batch, on any device.
        dynamic: Whether sizes may differ from the example's, see `export`.

    Raises:
        ValueError: If the network cannot be called with the example or exported with free sizes, or the file computes
            something else.
    """
    inputs = inputs_of(example_inputs, network)
    with evaluating(network), plain_products(network):
        try:
            _write(network, inputs, path, dynamic)
        except Refusal as refusal:
            if not dynamic:
                raise
            _write(network, inputs, path, False)  # a second refusal explains itself
            raise Refusal(refusal.expected, refusal.cause, FIXED_SIZES) from refusal


def _write(network: nn.Module, inputs: ModelInputs, path: Path, dynamic: bool) -> None:
    """Trace a network, write the format of the path's ending, and check the file.

    Raises:
        Refusal: If a step fails.
    """
    if inputs.n_samples == 1 and dynamic:
        inputs = inputs.select(torch.tensor([0, 0]))  # a batch of 1 would be taken for fixed
    named = NamedNetwork(network, inputs)
    with called_with(network, "example_inputs", inputs):
        wanted = named(*named.tensors)
    program = _traced(named, inputs.n_samples if dynamic else None)
    if path.suffix == ".pt2":
        with path.open("wb") as file:
            torch.export.save(program, file)
    else:
        _write_onnx(program, path, named.names, names_beside(named.names, wanted))
    check_file(path, named, wanted, inputs)


def _traced(named: NamedNetwork, samples: int | None) -> Any:
    """Trace a network.

    Args:
        named: Network to trace.
        samples: Size of the batch, which becomes free; None: all sizes stay as in the example.
    """
    sizes = tuple(_free_sizes(tensor, samples) for tensor in named.tensors)
    which = "the sizes of the example" if samples is None else "free sizes"
    expected = f"a network that torch.export can trace with {which}"
    said = redirect_stderr(StringIO())  # torch.export prints an unfinished graph
    with _explained(expected, f"{type(named.network).__name__} is none", PART, named.names), said:
        return torch.export.export(named, tuple(named.tensors), dynamic_shapes={"tensors": sizes})


def _free_sizes(tensor: Tensor, samples: int | None) -> dict[int, Any]:
    """Return the free dimensions of an input; the network's own code limits their range."""
    if samples is None or not tensor.ndim or len(tensor) != samples:
        return {}
    tokens = tensor.ndim == 2 and not tensor.is_floating_point()
    return dict.fromkeys((0, 1) if tokens else (0,), torch.export.Dim.DYNAMIC)


def _write_onnx(program: Any, path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Convert a program, and write the file with unique names of inputs and outputs."""
    with _explained("a network that torch.onnx can convert", "it cannot convert this one", OTHER_FORMAT):
        written = torch.onnx.export(program, dynamo=True, external_data=False, verbose=False)
    assert written is not None, "dynamo=True returns the program"
    graph = written.model.graph
    ends = dict(zip((*graph.inputs, *graph.outputs), (*inputs, *outputs), strict=True))
    for value in (value for node in graph.all_nodes() for value in node.outputs):
        if value not in ends and value.name in ends.values():
            value.name = f"inside/{value.name}"
    for value, name in ends.items():
        value.name = name
    written.save(str(path))


def check_file(path: Path, named: NamedNetwork, wanted: Mapping[str, Tensor], inputs: ModelInputs) -> None:
    """Run the file on the example; ONNX only where onnxruntime is installed.

    Raises:
        Refusal: If the file does not run, or an output differs by more than 0.001, relative or absolute; padded tokens
            do not count.
    """
    onnx = path.suffix == ".onnx"
    if onnx and not find_spec("onnxruntime"):
        return
    with _explained("a file that runs", f"{'onnxruntime' if onnx else 'torch.export'} does not run it", IN_FULL):
        found = (_run_onnx if onnx else _run_program)(path, named)
    for one, (name, value) in zip(found, wanted.items(), strict=True):
        got, right = (without_padding(tensor.cpu(), inputs).float() for tensor in (one, value))
        if got.shape != right.shape or not torch.allclose(got, right, TOLERANCE, TOLERANCE, equal_nan=True):
            by = f"by up to {float((got - right).abs().max()):.3g}" if got.shape == right.shape else "in shape"
            raise Refusal(
                "the exported network to compute the model's outputs", f"its output '{name}' differs {by}", IN_FULL
            )


def _run_onnx(path: Path, named: NamedNetwork) -> list[Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    given = {name: tensor.cpu().numpy() for name, tensor in zip(named.names, named.tensors, strict=True)}
    kept = {entry.name for entry in session.get_inputs()}
    values = session.run(None, {name: value for name, value in given.items() if name in kept})
    return [torch.from_numpy(value) for value in values]


def _run_program(path: Path, named: NamedNetwork) -> list[Tensor]:
    with path.open("rb") as file:
        return [*torch.export.load(file).module()(*named.tensors).values()]


@contextmanager
def _explained(expected: str, cause: str, way_out: str, names: Sequence[str] = ()) -> Iterator[None]:
    """Turn errors of a library or of the network's code inside a `with` block into a refusal, except lack of memory.

    Args:
        expected: Expectation, see `Refusal`.
        cause: Beginning of the cause; the error and the line of code follow.
        way_out: Next step, see `Refusal`.
        names: Names of the traced tensors.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise Refusal(expected, f"{cause} ({_reason(error, names)})", way_out) from error


def _reason(error: BaseException, names: Sequence[str]) -> str:
    """Return an error's message in one line, with the line of code for a traced network."""
    while isinstance(error, torch.onnx.errors.OnnxExporterError) and error.__cause__ is not None:
        error = error.__cause__
    text = str(error)
    if fixed := next(filter(None, (pattern.search(text) for pattern in NO_OTHER_SIZE)), None):
        name, size = names[int(fixed["tensor"])], fixed["size"]
        return f"its code lets '{name}' have no other size than {size} in dimension {fixed['dimension']}"
    told = next(filter(None, map(str.strip, text.splitlines())), "").removesuffix(".")
    return f"{type(error).__name__}: {told}{_where(error) if names else ''}"


def _where(error: BaseException) -> str:
    own = Path(torch.__file__).parent, Path(__file__).parents[1]
    met = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in met if not any(Path(frame.filename).is_relative_to(folder) for folder in own)]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}, `{frames[-1].line}`" if frames else ""
