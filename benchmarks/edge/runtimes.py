"""Runtimes of small devices: conversion of an exported network, in floating point and in int8, and runs on the CPU.

A converter takes the files of `export`, ONNX or a program of `torch.export`, and returns the path of the converted file
with a function that runs it once. The recipes of int8 are those of each runtime's manual: weights and activations by
scales from calibration inputs for convolutional networks; scales that follow each input for transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Arrays = list[NDArray[Any]]
Run = Callable[[Arrays], Arrays] | None


@dataclass(frozen=True)
class Exported:
    """Files of a network, and inputs to calibrate int8 on.

    Attributes:
        folder: Folder for further files.
        onnx: ONNX file of fixed sizes.
        program: Program of `torch.export` of fixed sizes.
        calibration: Inputs, in the order of the file's.
        convolutional: Whether int8 has scales from the calibration inputs.
    """

    folder: Path
    onnx: Path
    program: Path
    calibration: Sequence[Arrays]
    convolutional: bool

    @property
    def opened(self) -> Any:
        """Program, read anew: converters change it."""
        return torch.export.load(self.program)


def onnxruntime(files: Exported, int8: bool) -> tuple[Path, Run]:
    """Write and run ONNX; int8: `quantize_static` for convolutional networks, else `quantize_dynamic`."""
    import onnxruntime as runtime
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, names: list[str]) -> None:
            self.given = iter([dict(zip(names, arrays, strict=True)) for arrays in files.calibration])

        def get_next(self) -> Any:
            return next(self.given, None)

    def opened(path: Path) -> Any:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    path = files.onnx
    if int8:
        prepared, path = files.folder / "prepared.onnx", files.folder / "int8.onnx"
        quant_pre_process(str(files.onnx), str(prepared), skip_symbolic_shape=True)
        if files.convolutional:
            names = [entry.name for entry in opened(prepared).get_inputs()]
            quantize_static(prepared, path, Reader(names), per_channel=True, weight_type=QuantType.QInt8)
        else:
            quantize_dynamic(prepared, path, weight_type=QuantType.QInt8)
    session = opened(path)
    names = [entry.name for entry in session.get_inputs()]
    return path, lambda arrays: session.run(None, dict(zip(names, arrays, strict=True)))


def openvino(files: Exported, int8: bool) -> tuple[Path, Run]:
    """Write OpenVINO's files and run them in float32; int8: `nncf.quantize`."""
    import openvino as ov

    model = ov.convert_model(files.onnx)
    if int8:
        import nncf

        kind = None if files.convolutional else nncf.ModelType.TRANSFORMER
        names = [entry.get_any_name() for entry in model.inputs]
        data = nncf.Dataset([dict(zip(names, arrays, strict=True)) for arrays in files.calibration])
        model = nncf.quantize(model, data, model_type=kind)
    path = files.folder / f"openvino{int8}.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    options = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(path, "CPU", options).create_infer_request()
    return path.with_suffix(".bin"), lambda arrays: [np.array(out) for out in request.infer(arrays).values()]


def executorch(files: Exported, int8: bool) -> tuple[Path, Run]:
    """Lower a program to XNNPACK and run it; int8: XNNPACK's quantiser."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
    from executorch.runtime import Runtime

    _unsafe_reset_threadpool(1)
    program = files.opened
    if int8:
        program = _quantised(program, files)
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
    path = files.folder / f"model{int8}.pte"
    path.write_bytes(lowered.buffer)
    loaded = Runtime.get().load_program(path)
    method = loaded.load_method("forward")
    return path, lambda arrays: [out.numpy().copy() for out in method.execute(_tensors(arrays))]


def _quantised(program: Any, files: Exported) -> Any:
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=not files.convolutional)
    quantizer = xnnpack.XNNPACKQuantizer().set_global(config)
    if not files.convolutional:  # the quantiser makes floats of all scalars, for additions; here: of indices, too
        quantizer.transform_for_annotation = lambda model: model
    prepared = prepare_pt2e(program.module(), quantizer)
    for arrays in files.calibration:
        prepared(*_tensors(arrays))
    return torch.export.export(convert_pt2e(prepared), tuple(_tensors(files.calibration[0])))


def litert(files: Exported, int8: bool) -> tuple[Path, Run]:
    """Convert a program by litert-torch and run it; int8: scales that follow each input, by the AI Edge quantiser."""
    import litert_torch
    from ai_edge_litert.interpreter import Interpreter

    path = files.folder / "model.tflite"
    if not path.is_file():
        litert_torch.convert(files.opened.module(), tuple(_tensors(files.calibration[0]))).export(str(path))
    if int8:
        from ai_edge_quantizer import quantizer, recipe

        path, whole = files.folder / "int8.tflite", quantizer.Quantizer(str(path))
        whole.load_quantization_recipe(recipe.dynamic_wi8_afp32())
        whole.quantize().export_model(str(path), overwrite=True)
    interpreter = Interpreter(str(path), num_threads=1)
    interpreter.allocate_tensors()
    places = [
        sorted(interpreter.get_input_details(), key=_number),
        sorted(interpreter.get_output_details(), key=_number),
    ]

    def run(arrays: Arrays) -> Arrays:
        for place, array in zip(places[0], arrays, strict=True):
            interpreter.set_tensor(place["index"], array.astype(place["dtype"]))
        interpreter.invoke()
        return [interpreter.get_tensor(place["index"]) for place in places[1]]

    return path, run


def _number(place: Any) -> tuple[int, str]:
    return len(place["name"]), place["name"]


def coreml(files: Exported, int8: bool) -> tuple[Path, Run]:
    """Convert a program by coremltools, whose files run on Apple's systems alone; int8: weights."""
    import coremltools as ct

    program = files.opened.run_decompositions()
    for node in [node for node in program.graph.nodes if node.target is torch.ops.aten.alias.default]:
        node.replace_all_uses_with(node.args[0])  # coremltools does not know the operation
        program.graph.erase_node(node)
    model = ct.convert(program, minimum_deployment_target=ct.target.iOS17)
    if int8:
        from coremltools.optimize import coreml as optimize

        own = optimize.OptimizationConfig(global_config=optimize.OpLinearQuantizerConfig(mode="linear_symmetric"))
        model = optimize.linear_quantize_weights(model, own)
    path = files.folder / f"model{int8}.mlpackage"
    model.save(str(path))
    return path, None


@dataclass(frozen=True)
class Runtime:
    """A runtime of the matrix.

    Attributes:
        name: Name as its makers write it.
        packages: Distributions on PyPI, the converter first.
        convert: Function from exported files and whether int8 is wanted to the file and its run.
    """

    name: str
    packages: tuple[str, ...]
    convert: Callable[[Exported, bool], tuple[Path, Run]]

    @property
    def versions(self) -> str:
        """Installed versions; empty if a package is not installed."""
        try:
            return ", ".join(f"{package} {version(package)}" for package in self.packages)
        except PackageNotFoundError:
            return ""


RUNTIMES = (
    Runtime("ONNX Runtime", ("onnxruntime",), onnxruntime),
    Runtime("OpenVINO", ("openvino", "nncf"), openvino),
    Runtime("ExecuTorch", ("executorch",), executorch),
    Runtime("LiteRT", ("litert-torch", "ai-edge-litert", "ai-edge-quantizer"), litert),
    Runtime("Core ML", ("coremltools",), coreml),
)


def size_of(path: Path) -> int:
    """Return the bytes of a file or a folder."""
    return sum(part.stat().st_size for part in (path.rglob("*") if path.is_dir() else [path]) if part.is_file())


def _tensors(arrays: Arrays) -> list[torch.Tensor]:
    return list(map(torch.from_numpy, arrays))


BY_NAME = {runtime.name: runtime for runtime in RUNTIMES}
