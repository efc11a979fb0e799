"""Reading of a distributed checkpoint: the folder of shards that FSDPStrategy and ModelParallelStrategy write.

The folder holds `.metadata` (a pickle with the place of each tensor), `*.distcp` (shards of tensors) and Lightning's
meta.pt (all further data, including the ledger). PyTorch unpickles `.metadata` without a check. Here the pickle may
name only the few classes of an index, and only files of the folder: nothing is executed, and nothing outside is read.
Of the shards, only the weights are read. Not covered: folders of DeepSpeed.
"""

from __future__ import annotations

import pathlib
import pickle
import warnings
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

META, INDEX = "meta.pt", ".metadata"
WEIGHTS = ("state_dict.", "model.")  # prefixes of ModelParallelStrategy and FSDPStrategy
OF_DCP = "torch.distributed.checkpoint"
CLASSES = {
    f"{OF_DCP}.metadata": {
        "Metadata",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "_MEM_FORMAT_ENCODING",
        "MetadataIndex",
        "StorageMeta",
    },
    f"{OF_DCP}.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "collections": {"OrderedDict"},
}
PATHS = {"PosixPath": pathlib.PurePosixPath, "WindowsPath": pathlib.PureWindowsPath}


def is_distributed(path: Path) -> bool:
    """Whether a path is a folder written by a sharded strategy of Lightning."""
    return path.is_dir() and ((path / META).is_file() or (path / INDEX).is_file())


def read_weights_of(path: Path) -> dict[str, Tensor]:
    """Return the whole state dict of the LightningModule in a distributed checkpoint, on the CPU.

    Args:
        path: Folder of the checkpoint.

    Raises:
        ValueError: If the folder cannot be read, or its index names anything but tensors in files of the folder.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        index = _index(path / INDEX)
        prefix = next((p for p in WEIGHTS if any(name.startswith(p) for name in index.state_dict_metadata)), WEIGHTS[0])
        state = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in index.state_dict_metadata.items()
            if name.startswith(prefix) and isinstance(entry, TensorStorageMetadata)
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # a single process reads all shards
            load(state, storage_reader=_reader(path, index), no_dist=True)
    except (Exception, CheckpointException) as error:  # CheckpointException is no Exception
        raise ValueError(
            f"Expected a distributed checkpoint in {path}, but it cannot be read ({type(error).__name__}: "
            f"{str(error).partition(chr(10))[0][:200]}). Is a file missing or cut off? Copy the folder again."
        ) from None
    return {name.removeprefix(prefix): value for name, value in state.items()}


def as_file(path: Path) -> Path | BytesIO:
    """Return a source for Lightning's `load_from_checkpoint`: a file as is, a folder as a file in memory."""
    if not is_distributed(path):
        return path
    checkpoint = torch.load(path / META, map_location="cpu", weights_only=True)
    content = BytesIO()
    torch.save({**checkpoint, "state_dict": read_weights_of(path)}, content)
    content.seek(0)
    return content


class _Unpickler(pickle.Unpickler):
    """Unpickler for the index of a distributed checkpoint alone."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of an index."""
        if module.split(".")[0] == "pathlib" and name in PATHS:
            return PATHS[name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name in CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{INDEX} names {module}.{name}, and nothing in a file is executed")


def _index(path: Path) -> Metadata:
    """Read `.metadata`."""
    with path.open("rb") as stream:
        index: Metadata = _Unpickler(stream).load()
    files = {info.relative_path for info in index.storage_data.values()}
    outside = sorted(file for file in files if Path(file).name != file)
    if outside:
        raise ValueError(f"{INDEX} names {outside[0]}, which is no file of the folder")
    return index


def _reader(path: Path, index: Metadata) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    class Reader(FileSystemReader):
        """Reader of shards with a checked index."""

        def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
            """Return the index."""
            return index

    return Reader(path)
