"""Save a routed language model as a folder: its sets, router and tokenizer, and which base model they are for.

The base model's weights are where it was loaded from, by name or path, and are checked when the folder is opened. Those
that were trained since are written into the folder (`weights=True`), as transformers saves them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from prunerecover.files.atomic import atomic_folder, whole_folder
from prunerecover.files.hashes import sha256_of
from prunerecover.files.in_short import errors_in_short, in_short
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
INSIDE = "./model"  # where weights are that the folder holds itself


def save_routed(routed: RoutedCausalLM, path: str | Path, *, base: str | None = None, weights: bool = False) -> Path:
    """Write a folder from which `load_routed` makes the same routed model again.

    Args:
        routed: The model.
        path: The folder; it appears complete or not at all, and one of ours is replaced.
        base: Path or hub id of the dense model; None: where transformers has loaded it from.
        weights: Write the dense model's weights into the folder, because they were trained since, or are nowhere else.

    Raises:
        ValueError: If nobody says where the dense model is, or it is said and written, too.
        FileExistsError: If something that we did not write is at `path`.
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
        routed: The model.
        path: The folder.
        base: Path or hub id of the dense model; `INSIDE`: its weights are written into the folder.
        run: The mark of the run that writes it, if one does.

    Raises:
        FileExistsError: If something that we did not write is at `path`.
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
    """Make a routed language model again. Nothing is fetched from the hub, and no code in a folder is executed.

    Args:
        path: A folder of `save_routed`.
        model: The dense model, in any precision, wrapped or not; None: it is loaded by transformers from where the
            folder says, if that is on this machine.
        how: Arguments of `RoutedCausalLM`, such as `device`, or `routed=True` where it was saved switched off.

    Raises:
        FileNotFoundError: If there is no such folder, a file is missing from it, or the dense model is not where it
            says.
        ValueError: If a file was changed or cannot be opened, or the model is not the one that the sets are for.
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
    """Read and check what a folder says."""
    data = read_json(path / ROUTING, "a routed model")
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"Expected a routed model of schema {SCHEMA} at {path}, but got something else.")
    try:
        return RoutedRecord.model_validate(data)
    except ValidationError as error:
        raise ValueError(
            f"Expected a routed model as `save_routed` writes it at {path / ROUTING}, but {errors_in_short(error)}. "
            "Copy it again."
        ) from None


def _saved(router: Router, folder: Path) -> RouterRecord:
    """Write a router."""
    module: Any = router
    kind: Any = kind_of(module)
    settings = module.save(folder)
    return RouterRecord(kind=kind, settings=settings, weights=sha256_of(folder / WEIGHTS))


def _loaded(said: RouterRecord, path: Path, n_sets: int) -> Router:
    """Read a router for so many sets."""
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
    """Return a folder of transformers: the path itself, or where the hub's client keeps what it fetched by this id."""
    from huggingface_hub import snapshot_download

    if base.is_absolute() and not base.is_dir():
        raise FileNotFoundError("there is no such folder")
    return base if base.is_dir() else Path(snapshot_download(str(base), local_files_only=True))


@contextmanager
def _opening(what: str, place: str | Path, way_out: str) -> Iterator[None]:
    """Explain whatever other libraries make of a damaged or foreign file inside a `with` block.

    Args:
        what: Should be there.
        place: The file, folder or hub id.
        way_out: The call that takes it from the user.
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
    """Return all files in a folder and those in it, by their paths there."""
    return {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}


def _check_sums(said: RoutedRecord, path: Path) -> None:
    """Raise ValueError if a file was changed since the folder was written, or is not there."""
    there = _files_in(path)  # and nothing outside, whatever it says
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
            f"Expected the weights that the sets at {path} were planned for ({said.base}), but these are others. Open "
            "the model in the precision of its file, plan and route anew for these weights, or write those that were "
            "trained since into the folder: save_routed(..., weights=True)."
        )


def _has_weights(model: nn.Module, said: RoutedRecord) -> bool:
    """Whether a model has the weights that a folder says, as they are or as they are in float16."""
    if said.weights in (None, weights_hash(model)):
        return True
    if said.in_float16 is None:  # a folder of before, which cannot tell
        return any(parameter.dtype == torch.float16 for parameter in model.parameters())
    return said.in_float16 == weights_hash(model, torch.float16)


def run_of_routed(path: Path) -> str:
    """Return the mark of the run that wrote a folder; empty: none did, or it cannot be read."""
    try:
        said = read_json(path / ROUTING, "a routed model")
    except (OSError, ValueError):
        return ""
    return str(said.get("run", "")) if isinstance(said, dict) else ""
