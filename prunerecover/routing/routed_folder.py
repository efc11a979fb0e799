"""Save a routed language model as a folder: its sets, router and tokenizer, and which base model they are for.

The base model's weights are not in it: they are the ones that the sets were planned for, by name or path, and are
checked against them when the folder is opened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError
from torch import nn

from prunerecover.files.atomic import atomic_folder, whole_folder
from prunerecover.files.hashes import sha256_of
from prunerecover.files.json_file import read_json
from prunerecover.model.hashing import tensors_hash, weights_hash
from prunerecover.model.paths import unwrap
from prunerecover.plan.records import Record
from prunerecover.routing.plan_set import PlanSet
from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.router import ROUTERS, WEIGHTS, Router, kind_of

SCHEMA = "prunerecover.routed/1"
ROUTING, SETS, TOKENIZER = "routing.json", "plan_set.json", "tokenizer"


class RouterRecord(Record):
    """What makes a router again.

    Attributes:
        kind: Name of its class in `ROUTERS`.
        settings: As its `save` returned them.
        weights: sha256 of the file with its weights.
    """

    kind: Literal["prefix", "encoder"]
    settings: dict[str, Any]
    weights: str


class RoutedRecord(Record):
    """What `routing.json` says.

    Attributes:
        base: Path or hub id of the dense model.
        tensors: Hash of its names and shapes.
        weights: Hash of its values; None if they were not there.
        sets: sha256 of the file with the sets.
        default: Name of the set without routing.
        routed: Whether the router is asked.
        router: None: there is none.
    """

    schema_: str = Field(default=SCHEMA, validation_alias="schema", serialization_alias="schema")
    base: str
    tensors: str
    weights: str | None
    sets: str
    default: str
    routed: bool
    router: RouterRecord | None


def save_routed(routed: RoutedCausalLM, path: str | Path, *, base: str | None = None) -> Path:
    """Write a folder from which `load_routed` makes the same routed model again.

    Args:
        routed: The model.
        path: The folder; it appears complete or not at all, and one of ours is replaced.
        base: Path or hub id of the dense model; None: where transformers has loaded it from.

    Raises:
        ValueError: If nobody says where the dense model is.
        FileExistsError: If something that we did not write is at `path`.
    """
    base = base or str(getattr(getattr(routed.model, "config", None), "_name_or_path", ""))
    if not base:
        raise ValueError("Expected base=..., the path or hub id of the dense model, as it was not loaded from one.")
    path = Path(path)
    if path.exists() and not (path / ROUTING).is_file():
        raise FileExistsError(f"Expected a free path, or a folder of a routed model, but {path} is something else.")
    with atomic_folder(path) as folder:
        routed.sets.save(folder / SETS)
        if routed.tokenizer is not None:
            routed.tokenizer.save_pretrained(folder / TOKENIZER)
        said = RoutedRecord(
            base=str(Path(base).resolve()) if Path(base).is_dir() else base,
            tensors=tensors_hash(routed.model),
            weights=weights_hash(routed.model),
            sets=sha256_of(folder / SETS),
            default=routed.sets.names[routed.default],
            routed=routed.routed,
            router=None if routed.router is None else _saved(routed.router, folder),
        )
        (folder / ROUTING).write_text(json.dumps(said.model_dump(by_alias=True), indent=2) + "\n")
    return path


def load_routed(path: str | Path, model: nn.Module | None = None, **how: Any) -> RoutedCausalLM:
    """Make a routed language model again.

    Args:
        path: A folder of `save_routed`.
        model: The dense model, in any precision, wrapped or not; None: it is loaded by transformers from where the
            folder says.
        how: Arguments of `RoutedCausalLM`, such as `device`, or `routed=True` where it was saved switched off.

    Raises:
        FileNotFoundError: If there is no such folder, a file is missing from it, or the dense model is not where it
            says.
        ValueError: If a file was changed, or the model is not the one that the sets are for.
    """
    path = whole_folder(Path(path))
    if not (path / ROUTING).is_file():
        raise FileNotFoundError(f"Expected a folder of a routed model at {path}, but it has no {ROUTING}.")
    said = _read(path)
    sets = PlanSet.load(path / SETS)
    if sha256_of(path / SETS) != said.sets:
        raise ValueError(
            f"Expected the sets that the router at {path} was trained for, but {SETS} was changed. Copy it again, or "
            "train a router for the new sets."
        )
    router = None if said.router is None else _loaded(said.router, path)
    model = _open_base(said.base, path) if model is None else unwrap(model)
    _check_base(model, said, path)
    if how.get("tokenizer") is None and (path / TOKENIZER).is_dir():
        from transformers import AutoTokenizer

        how["tokenizer"] = AutoTokenizer.from_pretrained(path / TOKENIZER)
    return RoutedCausalLM(model, sets, router, **{"default": said.default, "routed": said.routed, **how})


def _read(path: Path) -> RoutedRecord:
    """Read and check what a folder says."""
    data = read_json(path / ROUTING, "a routed model")
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"Expected a routed model of schema {SCHEMA} at {path}, but got something else.")
    try:
        return RoutedRecord.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"Expected a routed model as `save_routed` writes it at {path / ROUTING}, but {where} is wrong: "
            f"{first['msg']}. Copy it again."
        ) from None


def _saved(router: Router, folder: Path) -> RouterRecord:
    """Write a router."""
    module: Any = router
    kind: Any = kind_of(module)
    settings = module.save(folder)
    return RouterRecord(kind=kind, settings=settings, weights=sha256_of(folder / WEIGHTS))


def _loaded(said: RouterRecord, path: Path) -> Router:
    """Read a router."""
    if not (path / WEIGHTS).is_file():
        raise FileNotFoundError(f"Expected the router's weights in {WEIGHTS} at {path}, but there are none.")
    if sha256_of(path / WEIGHTS) != said.weights:
        raise ValueError(
            f"Expected the router that was saved with the sets at {path}, but {WEIGHTS} is another. Copy it again."
        )
    try:
        return ROUTERS[said.kind].load(path, said.settings)
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"Expected settings that make the router again in {path / ROUTING}, but got {said.settings}: {error}. Copy "
            "it again."
        ) from None


def _open_base(base: str, path: Path) -> nn.Module:
    """Load the dense model by transformers."""
    from transformers import AutoModelForCausalLM

    try:
        model: nn.Module = AutoModelForCausalLM.from_pretrained(base)
    except OSError as error:
        raise FileNotFoundError(
            f"Expected the dense model of {path} at {base}, but it cannot be opened ({str(error)[:200]}). Pass it as "
            "load_routed(path, model)."
        ) from None
    return model.eval()


def _check_base(model: nn.Module, said: RoutedRecord, path: Path) -> None:
    """Raise ValueError if the sets were planned for another model."""
    if tensors_hash(model) != said.tensors:
        raise ValueError(
            f"Expected the model that the sets at {path} were planned for ({said.base}), but this "
            f"{type(model).__name__} has other tensors. Was it pruned, or is it another depth?"
        )
    rounded = any(parameter.dtype == torch.float16 for parameter in model.parameters())  # otherwise than to bfloat16
    if not rounded and said.weights not in (None, weights_hash(model)):
        raise ValueError(
            f"Expected the weights that the sets at {path} were planned for ({said.base}), but these are others. "
            "Plan and route anew for them."
        )
