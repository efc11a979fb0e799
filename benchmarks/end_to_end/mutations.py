"""Seeded mutations of files: bytes, JSON, tensors and pickles, as from accidents and attackers.

Each takes a random generator and files, changes the files in place, and returns a description of the change.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from prunerecover.checkpoint.ledger_record import KEY
from prunerecover.files.hashes import sha256_of

PAYLOAD = "executed"  # the folder that a payload makes, beside the mutated files


def _deep(levels: int) -> Any:
    found: Any = 0
    for _ in range(levels):
        found = [found]
    return found


ODD: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: -1,
    lambda: 0,
    lambda: 10**12,
    lambda: 10**30,
    lambda: 1e308,
    lambda: float("nan"),
    lambda: True,
    lambda: "",
    lambda: "x" * 10_000,
    lambda: "../../x",
    lambda: "/etc/passwd",
    lambda: "blocks.9",
    lambda: "__class__",
    lambda: [],
    lambda: {},
    lambda: [[1]],
    lambda: {"a": {"b": 1}},
    lambda: _deep(80),
    lambda: _deep(250),
)


class Bomb:
    """Object with a side effect on unpickling: a new folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.path,)


def mutate_tree(data: Any, draw: Random) -> str:
    """Change an entry of nested lists and dicts: another value, a removal, a duplicate, or another name."""
    places = [(holder, key) for holder in _holders(data) for key in _keys(holder)]
    holder, key = draw.choice(places)
    action = draw.choice(("odd", "odd", "gone", "twice", "renamed", "swapped"))
    if action == "gone":
        del holder[key]
    elif action == "twice":
        holder.append(holder[key]) if isinstance(holder, list) else holder.update({f"{key}2": holder[key]})
    elif action == "renamed" and isinstance(holder, dict):
        holder[draw.choice((f"{key}x", "", "../../x", 3))] = holder.pop(key)
    elif action == "swapped":
        other = draw.choice(_keys(holder))
        holder[key], holder[other] = holder[other], holder[key]
    else:
        holder[key] = draw.choice(ODD)()
    return f"{action}: {str(key)[:40]}"


def _holders(data: Any) -> list[Any]:
    found, left = [], [data]
    while left:
        entry = left.pop()
        if isinstance(entry, dict | list) and entry:
            found.append(entry)
            left += entry.values() if isinstance(entry, dict) else entry
    return found


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))


def mutate_json(path: Path, draw: Random) -> str:
    """Change an entry of a JSON file, mostly among the plan's edits."""
    data = json.loads(path.read_text())
    part = draw.choice((data, data, data["edits"] or data, data["source"], data["result"]))
    said = mutate_tree(part, draw)
    path.write_text(json.dumps(data))
    return said


def mutate_tensors(path: Path, draw: Random) -> str:
    """Change a tensor of a safetensors file, and the hash of the file in the JSON beside it."""
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata() or {})
    said = _mutate_weights(tensors, draw)
    if metadata and draw.random() < 0.2:
        metadata[draw.choice(list(metadata))] = draw.choice(("[]", "{", "[" * 5000, '{"head.weight": "none"}', "3"))
        said += ", and metadata"
    save_file({name: value.contiguous().clone() for name, value in tensors.items()}, path, metadata)
    plan = path.parent / "plan.json"
    data = json.loads(plan.read_text())
    if data.get("sidecar") and data["sidecar"]["file"] == path.name:
        data["sidecar"]["sha256"] = sha256_of(path)
    elif draw.random() < 0.5:
        data.get("saved", {}).get("sha256", {})[path.name] = sha256_of(path)
    plan.write_text(json.dumps(data))
    return f"{said} of {path.name}"


def _mutate_weights(tensors: dict[str, Any], draw: Random) -> str:
    name = draw.choice(list(tensors))
    action = draw.choice(("gone", "renamed", "extra", "shape", "empty", "integer", "half", "swapped"))
    value = tensors[name]
    if action in ("gone", "renamed"):
        del tensors[name]
    if action in ("renamed", "extra"):
        tensors[draw.choice((f"{name}x", "../../x", "e7.bias"))] = value
    if action == "shape":
        tensors[name] = torch.zeros(7, 3)
    if action == "empty":
        tensors[name] = value[:0]
    if action in ("integer", "half"):
        tensors[name] = value.to(torch.int64 if action == "integer" else torch.float16)
    if action == "swapped":
        other = draw.choice(list(tensors))
        tensors[name], tensors[other] = tensors[other], value
    return f"{action} {name}"


def mutate_bytes(path: Path, draw: Random) -> str:
    """Flip bits, or truncate, extend, replace or remove the file."""
    content = bytearray(path.read_bytes())
    action = draw.choice(("flip", "flip", "flip", "flips", "cut", "cut", "empty", "longer", "gone", "payload", "zeros"))
    if action in ("flip", "flips"):
        for _ in range(1 if action == "flip" else 20):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif action == "cut":
        del content[draw.randrange(len(content)) :]
    elif action == "empty":
        content.clear()
    elif action == "longer":
        content += bytes(draw.randrange(256) for _ in range(draw.choice((1, 1000))))
    elif action == "payload":
        content = bytearray(pickle.dumps(Bomb(path.parent.parent / PAYLOAD)))
    elif action == "zeros":
        start = draw.randrange(len(content))
        content[start : start + 64] = bytes(len(content[start : start + 64]))
    if action == "gone":
        path.unlink()
    else:
        path.write_bytes(content)
    return f"{action} in {path.name}"


def mutate_checkpoint(path: Path, draw: Random) -> str:
    """Change an entry of a checkpoint, mostly of the ledger or the weights, or make it execute code."""
    checkpoint = torch.load(path, weights_only=True)
    where = draw.choice((KEY, KEY, KEY, "state_dict", "hyper_parameters", "", "payload"))
    if where == "payload":
        inside = draw.choice((checkpoint, checkpoint[KEY], checkpoint["hyper_parameters"], checkpoint["state_dict"]))
        inside["bomb"] = Bomb(path.parent.parent / PAYLOAD)
        said = "payload"
    elif where == "state_dict" and draw.random() < 0.7:
        said = _mutate_weights(checkpoint[where], draw)
    else:
        said = mutate_tree(checkpoint[where] if where else checkpoint, draw)
    torch.save(checkpoint, path)
    return f"{said} in {where or 'the checkpoint'}"
