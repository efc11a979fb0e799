"""Folder of a routed language model: sets, router, tokenizer, and a reference to the base model.

The weights of the base model stay at their origin, by name or path, and are checked when the folder is opened. Weights
trained since are written into the folder (`weights=True`), in the format of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prunerecover.files.atomic import atomic_folder, whole_folder
from prunerecover.files.hashes import sha256_of
from prunerecover.files.in_short import in_short, validated
from prunerecover.files.json_file import read_json
from prunerecover.files.refused_writes import naming_the_folder
from prunerecover.model.checks import NOT_IN_FILES, check_unquantised, warn_unless_finite
from prunerecover.model.hashing import tensors_hash, weights_hash
from prunerecover.model.paths import unwrap
from prunerecover.routing.plan_set import PlanSet
from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.routed_record import SCHEMA, RoutedRecord, RouterRecord
from prunerecover.routing.router import ROUTERS, WEIGHTS, Router, kind_of

ROUTING, SETS, TOKENIZER = "routing.json", "plan_set.json", "tokenizer"
LOCAL = {"trust_remote_code": False, "local_files_only": True}  # somebody else may have made the folder
INSIDE = "./model"  # weights inside the folder


def save_routed(routed: RoutedCausalLM, path: str | Path, *, base: str | None = None, weights: bool = False) -> Path:
    """Write a folder, from which `load_routed` restores the routed model.

    Args:
        routed: Routed model.
        path: Path of the folder, which appears complete or not at all; a folder of a routed model is replaced.
        base: Path or hub id of the dense model; None: its origin according to transformers.
        weights: Whether to write the weights of the dense model into the folder, because of training, or a missing
            origin.

    Raises:
        ValueError: If the origin of the dense model is unknown, or both `base` and `weights` are given.
        FileExistsError: If `path` is taken by other files.
    """
    if weights and base:
        raise ValueError(f"Expected base or weights=True, but got both: weights are in the folder or at {base}.")
    base = INSIDE if weights else base or str(getattr(getattr(routed.model, "config", None), "_name_or_path", ""))
    if not base:
        raise ValueError(
            "Expected base=..., the path or hub id of the dense model, as it was not loaded from one. Or pass "
            "weights=True, to write it into the folder."
        )
    return write_routed(routed, Path(path), base)


def write_routed(routed: RoutedCausalLM, path: Path, base: str, run: str = "") -> Path:
    """Write a folder of a routed model; see `save_routed`.

    Args:
        routed: Routed model.
        path: Path of the folder.
        base: Path or hub id of the dense model; `INSIDE`: weights are written into the folder.
        run: Mark of the writing run, or empty.

    Raises:
        FileExistsError: If `path` is taken by other files.
    """
    if base == INSIDE:
        check_unquantised(routed.model, "to save", NOT_IN_FILES)
    with naming_the_folder(path):
        _check_free(path)
    for written in (routed.model if base == INSIDE else None, routed.router):
        if isinstance(written, nn.Module):
            warn_unless_finite(written, path)
    with atomic_folder(path) as folder:
        if base == INSIDE:
            model: Any = routed.model
            model.save_pretrained(folder / INSIDE)
        routed.sets.save(folder / SETS)
        if routed.tokenizer is not None:
            routed.tokenizer.save_pretrained(folder / TOKENIZER)
        said = RoutedRecord(
            run=run,
            base=str(Path(base).resolve()) if base != INSIDE and Path(base).is_dir() else base,
            tensors=tensors_hash(routed.model),
            weights=weights_hash(routed.model),
            in_float16=weights_hash(routed.model, torch.float16),
            sets=sha256_of(folder / SETS),
            default=routed.sets.names[routed.default],
            routed=routed.routed,
            router=None if routed.router is None else _saved(routed.router, folder),
            files={name: sha256_of(file) for name, file in _files_in(folder).items()},
        )
        (folder / ROUTING).write_text(json.dumps(said.model_dump(by_alias=True), indent=2) + "\n")
    return path


def _check_free(path: Path) -> None:
    if path.exists() and not (path / ROUTING).is_file():
        raise FileExistsError(f"Expected a free path, or a folder of a routed model, but {path} is something else.")


def load_routed(path: str | Path, model: nn.Module | None = None, **how: Any) -> RoutedCausalLM:
    """Restore a routed language model. Nothing is fetched from the hub, and no code in a folder is executed.

    Args:
        path: Folder of `save_routed`.
        model: Dense model, in any precision, wrapped or not; None: loaded by transformers from the origin in the
            folder, if on this machine.
        how: Arguments of `RoutedCausalLM`, such as `device`, or `routed=True` for a model saved with routing off.

    Raises:
        FileNotFoundError: If there is no such folder, a file is missing, or the dense model is not at the origin.
        ValueError: If a file was changed or cannot be opened, or the sets are for another model.
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
    router = None if said.router is None else _loaded(said.router, path, len(sets.plans))
    _check_sums(said, path)
    model = _open_base(said, path) if model is None else unwrap(model)
    _check_base(model, said, path)
    for loaded in (model, router):
        if isinstance(loaded, nn.Module):
            warn_unless_finite(loaded, path)
    if how.get("tokenizer") is None and (path / TOKENIZER).is_dir():
        from transformers import AutoTokenizer

        with _opening("a tokenizer", path / TOKENIZER, "load_routed(path, tokenizer=...)"):
            how["tokenizer"] = AutoTokenizer.from_pretrained(path / TOKENIZER, **LOCAL)
    return RoutedCausalLM(model, sets, router, **{"default": said.default, "routed": said.routed, **how})


def _read(path: Path) -> RoutedRecord:
    """Read and check the record of a folder."""
    data = read_json(path / ROUTING, "a routed model")
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"Expected a routed model of schema {SCHEMA} at {path}, but got something else.")
    what = f"a routed model as `save_routed` writes it at {path / ROUTING}"
    return validated(RoutedRecord, data, what, "Copy it again.")


def _saved(router: Router, folder: Path) -> RouterRecord:
    """Write a router."""
    module: Any = router
    kind: Any = kind_of(module)
    settings = module.save(folder)
    return RouterRecord(kind=kind, settings=settings, weights=sha256_of(folder / WEIGHTS))


def _loaded(said: RouterRecord, path: Path, n_sets: int) -> Router:
    """Read a router for a number of sets."""
    if said.settings.get("n_sets") != n_sets:
        raise ValueError(
            f"Expected a router for {n_sets} sets in {path / ROUTING}, but got one of {in_short(said.settings)}. Copy "
            "the folder again."
        )
    if not (path / WEIGHTS).is_file():
        raise FileNotFoundError(f"Expected the router's weights in {WEIGHTS} at {path}, but there are none.")
    with _opening(f"a router of {in_short(said.settings)}", path, "RoutedCausalLM(model, sets, router)"):
        router = ROUTERS[said.kind].load(path, said.settings)
    if sha256_of(path / WEIGHTS) != said.weights:
        raise ValueError(
            f"Expected the router that was saved with the sets at {path}, but {WEIGHTS} is another. Copy it again."
        )
    return router


def _open_base(said: RoutedRecord, path: Path) -> nn.Module:
    """Load the dense model by transformers."""
    from transformers import AutoModelForCausalLM

    base = path / INSIDE if said.base == INSIDE else Path(said.base)
    with _opening(f"the dense model of {path}", base, "load_routed(path, model)"):
        model: nn.Module = AutoModelForCausalLM.from_pretrained(_folder_of(base), **LOCAL)
    return model.eval()


def _folder_of(base: Path) -> Path:
    """Return a folder of transformers: the path itself, or the cache folder of a hub id."""
    from huggingface_hub import snapshot_download

    if base.is_absolute() and not base.is_dir():
        raise FileNotFoundError("there is no such folder")
    return base if base.is_dir() else Path(snapshot_download(str(base), local_files_only=True))


@contextmanager
def _opening(what: str, place: str | Path, way_out: str) -> Iterator[None]:
    """Explain errors of other libraries about damaged or foreign files inside a `with` block.

    Args:
        what: Expected content.
        place: File, folder or hub id.
        way_out: Call to pass the content by hand.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        kind = FileNotFoundError if isinstance(error, OSError) else ValueError
        raise kind(
            f"Expected {what} at {in_short(place, 200)}, but it cannot be opened ({type(error).__name__}: "
            f"{in_short(error, 300)}). Nothing is fetched from the hub, and no code in a folder is executed. Copy the "
            f"folder again, or open it yourself and pass it: {way_out}."
        ) from None


def _files_in(folder: Path) -> dict[str, Path]:
    """Return all files in a folder and its subfolders, by relative path."""
    return {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}


def _check_sums(said: RoutedRecord, path: Path) -> None:
    """Raise ValueError if a file was changed since the folder was written, or is missing."""
    there = _files_in(path)  # no file outside, whatever the record says
    sums = ((name, name in there and sha256_of(there[name]) == expected) for name, expected in said.files.items())
    wrong = next((name for name, is_right in sums if not is_right), None)
    if wrong is not None:
        raise ValueError(
            f"Expected the files that {path} was saved with, but {in_short(wrong)} "
            f"{'has another sha256' if wrong in there else 'is not there'}. Copy the folder again from where it was "
            "made."
        )


def _check_base(model: nn.Module, said: RoutedRecord, path: Path) -> None:
    """Raise ValueError if the sets were planned for another model."""
    if tensors_hash(model) != said.tensors:
        raise ValueError(
            f"Expected the model that the sets at {path} were planned for ({said.base}), but this "
            f"{type(model).__name__} has other tensors. Was it pruned, or is it another depth?"
        )
    if not _has_weights(model, said):
        raise ValueError(
            f"Expected the weights that the sets at {path} were planned for ({said.base}), but got other weights. Open "
            "the model in the precision of its file, plan and route again for these weights, or write the trained "
            "weights into the folder: save_routed(..., weights=True)."
        )


def _has_weights(model: nn.Module, said: RoutedRecord) -> bool:
    """Whether a model has the recorded weights, in their precision or in float16."""
    if said.weights in (None, weights_hash(model)):
        return True
    if said.in_float16 is None:  # an older folder, without this hash
        return any(parameter.dtype == torch.float16 for parameter in model.parameters())
    return said.in_float16 == weights_hash(model, torch.float16)


def run_of_routed(path: Path) -> str:
    """Return the mark of the run that wrote a folder; empty: no run, or unreadable."""
    try:
        said = read_json(path / ROUTING, "a routed model")
    except (OSError, ValueError):
        return ""
    return str(said.get("run", "")) if isinstance(said, dict) else ""
