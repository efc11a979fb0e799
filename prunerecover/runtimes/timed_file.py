"""ONNX files for a clock alone: traced by TorchScript, in a tenth of the time of a file for serving.

A search reads a clock tens of times. Runtimes fuse the operations of both files alike: on ResNet-56, FastestDet and
DeiT-Tiny times differ by 2% at most in onnxruntime and OpenVINO. `export` writes the file where TorchScript cannot
trace the network, or traces another computation. Not covered: branches on values follow the example.
"""

from __future__ import annotations

import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import torch
from torch import nn

from prunerecover.model.batches import ModelInputs
from prunerecover.model.evaluation import evaluating
from prunerecover.runtimes.export import export
from prunerecover.runtimes.named_network import NamedNetwork, names_beside, plain_products
from prunerecover.runtimes.program_file import check_file
from prunerecover.runtimes.subnormals import without_subnormals


def write_to_time(network: nn.Module, path: Path, inputs: ModelInputs) -> Path:
    """Write a network as ONNX, with the sizes of the inputs; subnormal weights are written as zero.

    Args:
        network: Network, not changed.
        path: File to write.
        inputs: Inputs of the network.

    Returns:
        The path. Inputs are named as by `export`.

    Raises:
        Refusal: If no ONNX file computes the outputs of the network.
    """
    try:
        _trace(without_subnormals(network), path, inputs)
    except Exception:  # of a deprecated tracer, of many kinds
        export(network, path, inputs, dynamic=False)
    return path


def _trace(network: nn.Module, path: Path, inputs: ModelInputs) -> None:
    """Trace a network by TorchScript, write and check the file."""
    with evaluating(network), plain_products(network), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        named = NamedNetwork(network, inputs)
        wanted = named(*named.tensors)
        outputs = names_beside(named.names, wanted)
        with redirect_stdout(StringIO()):
            torch.onnx.export(
                named, tuple(named.tensors), str(path), input_names=named.names, output_names=outputs, dynamo=False
            )
        check_file(path, named, wanted, inputs)
