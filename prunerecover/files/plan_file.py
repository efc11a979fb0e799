"""The files of a plan: JSON, and beside it a safetensors file with the fitted tensors, whose sha256 the JSON holds.

The tensors are written first. Tensors of the old JSON are kept aside until the new JSON is written, and a reader takes
the file with the right hash: a kill at any moment leaves the whole old plan or the whole new plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prunerecover.files.atomic import atomic_file, write_text
from prunerecover.files.hashes import sha256_of
from prunerecover.files.in_short import in_short, validated
from prunerecover.files.json_file import read_json

LONGEST = 240  # bytes of a file's name, with room for a hidden name beside
SAVED = "saved"  # in the JSON only: independent of the plan's effect


class Saved(BaseModel):
    """Origin of a plan's file, as the file says.

    Attributes:
        run: Trainer run and network of the file; empty: no run.
        sha256: Hashes of the files written together, by name.
        target: Path of the plan's network in the model with the weights; empty: the model itself.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    run: str = ""
    sha256: dict[str, str] = {}
    target: str = ""


def write_plan(path: Path, data: Mapping[str, Any], tensors: Mapping[str, Tensor], saved: Saved | None = None) -> None:
    """Write a plan's files.

    Args:
        path: Path of the JSON; see `Plan.save` for the other file's name.
        data: Plan as primitives.
        tensors: Fitted tensors by key; empty: no second file.
        saved: Origin for the JSON.
    """
    data = {**data, "sidecar": None}
    if saved is not None:
        data[SAVED] = saved.model_dump(exclude_defaults=True)
    sidecar = path.with_name(f"{path.name.removesuffix('.json')}.safetensors")
    if tensors:
        with atomic_file(sidecar) as unfinished:
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, unfinished)
            data["sidecar"] = {"file": sidecar.name, "sha256": sha256_of(unfinished)}
            if _is_of(sidecar, path):
                sidecar.replace(_aside(sidecar))
    write_text(path, json.dumps(data, indent=2) + "\n")
    _aside(sidecar).unlink(missing_ok=True)


def read_data(path: Path) -> Any:
    """Return the content of a plan's JSON file.

    Raises:
        FileNotFoundError: If the file is missing.
        ValueError: If the file cannot be read as JSON.
    """
    if not path.is_file():
        raise FileNotFoundError(f"Expected a plan file at {path}, but there is none.")
    return read_json(path, "a plan")


def read_saved(data: Any) -> Saved:
    """Return the origin in a plan's file, with empty fields for a file without an origin.

    >>> read_saved({"saved": {"run": "1a2b/net"}}).run
    '1a2b/net'

    Raises:
        ValueError: If the origin has another form.
    """
    found = data.get(SAVED, {}) if isinstance(data, Mapping) else {}
    what = f"hashes by file name in '{SAVED}' of a plan's file"
    return validated(Saved, found, what, "Copy the file again from where it was made.")


def read_tensors(path: Path, sidecar: Mapping[str, str] | None) -> dict[str, Tensor]:
    """Return the fitted tensors named in a plan's JSON; empty without a name or without the file.

    Args:
        path: Path of the JSON.
        sidecar: Entry of the JSON with name and sha256.

    Raises:
        ValueError: If the file belongs to another plan, or cannot be read.
    """
    if sidecar is None:
        return {}
    name = Path(sidecar.get("file", "")).name
    if "sha256" not in sidecar or name in ("", "..") or not name.isprintable() or len(name.encode()) > LONGEST:
        raise ValueError(
            f"Expected name and sha256 of the file with the fitted tensors in {path}, but got {in_short(sidecar)}. "
            "Copy the plan again from where it was made."
        )
    named = path.parent / name
    there = [file for file in (named, _aside(named)) if file.is_file()]
    if not there:
        return {}
    right = next((file for file in there if sha256_of(file) == sidecar["sha256"]), None)
    if right is None:
        raise ValueError(
            f"Expected the fitted tensors that {path.name} was saved with, but {named.name} has another sha256. "
            "Copy both files again from where the plan was made."
        )
    try:
        return load_file(right)
    except SafetensorError as error:
        raise ValueError(f"Expected tensors in safetensors at {right}, but it cannot be read: {error}.") from None


def _is_of(sidecar: Path, path: Path) -> bool:
    """Whether the present JSON names exactly these tensors."""
    if not (sidecar.is_file() and path.is_file()):
        return False
    try:
        named = read_data(path)["sidecar"]["sha256"]
    except (ValueError, KeyError, TypeError):
        return False
    return bool(sha256_of(sidecar) == named)


def _aside(sidecar: Path) -> Path:
    return sidecar.with_name(f".{sidecar.name}.old")
