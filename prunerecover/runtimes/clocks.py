"""Clocks: runtimes in which the latency of a network is measured, by name, and clocks of your own.

A runtime other than PyTorch gets the network as an ONNX file of the example's sizes, on the CPU, with as many threads
as PyTorch has. Timings of two networks are interleaved (see `cost.latency`); a clock of your own times as it likes.
"""

from __future__ import annotations

import importlib
import math
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.cost.units.clock_names import TORCH, Clock, clock_name
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.evaluation import device_of
from prunerecover.refusal import Refusal
from prunerecover.runtimes.named_network import NamedNetwork
from prunerecover.runtimes.timed_file import write_to_time

Run = Callable[[], Any]


def run_in(clock: str, network: nn.Module, inputs: ModelInputs) -> Run:
    """Return a function that runs a network once in a runtime; it keeps the network's weights of now.

    Args:
        clock: Name of the runtime, among `CLOCKS`.
        network: Network in evaluation mode.
        inputs: Inputs of each run.

    Raises:
        Refusal: If the runtime is not installed, runs elsewhere than the network, or cannot take the network.
    """
    return CLOCKS[clock](network, inputs)


def seconds_of(clock: Clock, network: nn.Module, inputs: ModelInputs) -> float:
    """Return the seconds that a clock of a user measures.

    Raises:
        ValueError: If the clock returns no positive number.
    """
    found = clock(network, inputs)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        raise ValueError(
            f"Expected clock {clock_name(clock)} to return the seconds of a forward pass, a positive number, but got "
            f"{found!r}. Return the time that it measured."
        )
    return float(found)


def _in_torch(network: nn.Module, inputs: ModelInputs) -> Run:
    return partial(call, network, inputs)


def _compiled(network: nn.Module, inputs: ModelInputs) -> Run:
    """Compile a forward pass with separate code for each network: torch.compile limits the variants per code."""

    def forward() -> Any:
        return call(network, inputs)

    code: CodeType = forward.__code__.replace(co_name=f"forward_{id(network)}")
    own = FunctionType(code, forward.__globals__, closure=forward.__closure__)
    run: Run = torch.compile(own, dynamic=False)
    return run


def _in_onnxruntime(network: nn.Module, inputs: ModelInputs, *, int8: bool = False) -> Run:
    runtime = _installed("onnxruntime", network)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = write_to_time(network, Path(folder, "network.onnx"), inputs)
        if int8:
            path = _quantised(path)
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = _named(network, inputs, {entry.name for entry in session.get_inputs()})
    return partial(session.run, None, {name: value.numpy() for name, value in given.items()})


def _in_openvino(network: nn.Module, inputs: ModelInputs) -> Run:
    openvino = _installed("openvino", network)
    threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
    with tempfile.TemporaryDirectory() as folder:
        path = write_to_time(network, Path(folder, "network.onnx"), inputs)
        compiled = openvino.Core().compile_model(str(path), "CPU", threads)
    taken = {name for entry in compiled.inputs for name in entry.get_names()}
    given = {name: value.numpy() for name, value in _named(network, inputs, taken).items()}
    request = compiled.create_infer_request()
    return partial(request.infer, given)


def _quantised(path: Path) -> Path:
    """Return a file with weights and activations in 8 bits, whose scales follow each input."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantised = path.with_name("int8.onnx")
    quantize_dynamic(path, quantised, weight_type=QuantType.QInt8)
    return quantised


def _named(network: nn.Module, inputs: ModelInputs, taken: set[str]) -> dict[str, Tensor]:
    """Return the inputs that a file takes, by name."""
    named = NamedNetwork(network, inputs)
    return {name: tensor for name, tensor in zip(named.names, named.tensors, strict=True) if name in taken}


def _installed(package: str, network: nn.Module) -> Any:
    """Return the package of a runtime on the CPU."""
    if (device := device_of(network)).type != "cpu":
        raise Refusal(
            f"a network on the CPU for clock='{package}'", f"it is on {device}", "Move it there, or use clock='torch'."
        )
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise Refusal(
            f"{package} to be installed for clock='{package}'", str(error), f"Run pip install {package}."
        ) from error


CLOCKS: Mapping[str, Callable[[nn.Module, ModelInputs], Run]] = {
    TORCH: _in_torch,
    "compile": _compiled,
    "onnxruntime": _in_onnxruntime,
    "onnxruntime_int8": partial(_in_onnxruntime, int8=True),
    "openvino": _in_openvino,
}
