"""Export of a whole network to a file or folder of another runtime, in the formats of `FORMATS`.

ONNX and programs of `torch.export` hold any network, traced on an example. The formats for servers hold a decoder by
its parts. `save_pruned` writes a folder with safetensors for `load_pruned` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from prunerecover.files.atomic import atomic_file, atomic_folder
from prunerecover.model.arguments import check_flag
from prunerecover.model.checks import warn_unless_finite
from prunerecover.model.paths import unwrap
from prunerecover.runtimes.program_file import write_program
from prunerecover.runtimes.subnormals import without_subnormals
from prunerecover.serving.gguf_file import write_gguf
from prunerecover.serving.nemotron_nas import write_nemotron_nas


class Asked(NamedTuple):
    """Arguments of an export beside the network and the path; see `export`."""

    example_inputs: Any
    dynamic: bool
    tokenizer: Any


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        ending: Ending of the file's name; empty for a folder.
        needs: Name of the argument that the format cannot do without.
        write: Function that writes a network to a path.
    """

    ending: str
    needs: str
    write: Callable[[nn.Module, Path, Asked], None]


def _program(network: nn.Module, path: Path, asked: Asked) -> None:
    write_program(network, path, asked.example_inputs, asked.dynamic)


def _gguf(network: nn.Module, path: Path, asked: Asked, matrices: str) -> None:
    write_gguf(network, path, asked.tokenizer, matrices)


def _nemotron_nas(network: nn.Module, path: Path, asked: Asked) -> None:
    write_nemotron_nas(network, path, asked.tokenizer)


# Formats by name; a path without a format gets the first with the path's ending.
FORMATS: Mapping[str, Format] = {
    "onnx": Format(".onnx", "example_inputs", _program),
    "pt2": Format(".pt2", "example_inputs", _program),
    "gguf": Format(".gguf", "tokenizer", partial(_gguf, matrices="F16")),
    "gguf-q8_0": Format(".gguf", "tokenizer", partial(_gguf, matrices="Q8_0")),
    "gguf-f32": Format(".gguf", "tokenizer", partial(_gguf, matrices="F32")),
    "nemotron-nas": Format("", "tokenizer", _nemotron_nas),
}
ENDINGS = tuple(dict.fromkeys(found.ending for found in FORMATS.values() if found.ending))
MISSING = {
    "example_inputs": "a batch to trace the network on, such as images or a mapping of tokens",
    "tokenizer": "the language model's, AutoTokenizer.from_pretrained(name) (--tokenizer NAME on the command line)",
}


def export(
    model: nn.Module,
    path: str | Path,
    example_inputs: Any = None,
    dynamic: bool = True,
    format: str | None = None,
    tokenizer: Any = None,
) -> Path:
    """Write a network for another runtime, and check what is written; subnormal weights are written as zero.

    Args:
        model: Network to export, or a LightningModule with the forward; not changed. Formats for servers take a
            Llama-shaped decoder of transformers alone, whose layers may all differ.
        path: File to write, or a folder that is empty or absent; missing folders are made.
        example_inputs: Batch in any form of a calibration batch, on any device: a tensor, a tuple of input and labels,
            a mapping of keyword arguments; for ONNX and programs.
        dynamic: Whether the batch, the first dimension of tensors, and the second dimension of tokens `(N, T)` may have
            any size that the network allows (such as up to its number of positions); all other sizes stay as in the
            example. False: all sizes stay. Formats for servers have free sizes always.
        format: Name of the format: "onnx", "pt2" (a program of `torch.export`); for llama.cpp "gguf" (matrices in
            16-bit floats), "gguf-q8_0" (in 8 bits) or "gguf-f32"; for vLLM and others "nemotron-nas", a folder. None:
            the path's ending tells.
        tokenizer: Fast tokenizer of transformers, for the formats of servers.

    Returns:
        The path. ONNX inputs are named as in forward, outputs by key, with the prefix `output_` where an input has the
        same name; a loaded program takes tensors in order.

    Raises:
        ValueError: If the format is unknown or another than the path's, an argument is missing, the model cannot be
            called with the example or written in the format, or the file computes something else.
        FileExistsError: If the folder to write is there, and not empty.
        ModuleNotFoundError: If the package of a format is not installed.
    """
    path, network = Path(path), unwrap(model)
    found = format_of(path, format)
    check_flag("dynamic", dynamic)
    asked = Asked(example_inputs, dynamic, tokenizer)
    if getattr(asked, found.needs) is None:
        raise ValueError(f"Expected {found.needs} for {path.name}, but got None. Pass {MISSING[found.needs]}.")
    warn_unless_finite(network, path)
    if not found.ending and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"Expected nothing at {path}, or an empty folder, but got content. Give another path.")
    with atomic_file(path) if found.ending else atomic_folder(path) as unfinished:
        found.write(without_subnormals(network), unfinished, asked)
    return path


def format_of(path: Path, name: str | None = None) -> Format:
    """Return a format by name, or by the ending of a path.

    Raises:
        ValueError: If no format has the name or the ending, or the named format has another ending.
    """
    if name is None:
        by_ending = next((found for found in FORMATS.values() if found.ending and found.ending == path.suffix), None)
        if by_ending is None:
            raise ValueError(
                f"Expected a path that ends in one of {', '.join(ENDINGS)}, but got '{path}'. A folder "
                "with safetensors is what save_pruned(model, plan, folder) writes."
            )
        return by_ending
    if name not in FORMATS:
        raise ValueError(f"Expected a format of {', '.join(FORMATS)}, but got '{name}'. Name one of them.")
    ending = FORMATS[name].ending
    if path.suffix != ending and (ending or path.suffix in ENDINGS):
        wanted = f"a path that ends in {ending}" if ending else "a folder"
        raise ValueError(f"Expected {wanted} for the format '{name}', but got '{path}'. Change the one or the other.")
    return FORMATS[name]
