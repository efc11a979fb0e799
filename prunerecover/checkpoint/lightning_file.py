"""Read a Lightning checkpoint without Lightning: the ledger that callbacks left in it, and the networks' weights.

A checkpoint is a file, or the folder of a strategy that shards the model (`distributed_folder`).
Of the ledger (`ledger_record`) only the plans and the adapters count here; other entries are the callbacks' own. Files
are read without executing anything in them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.checkpoint.distributed_folder import META, is_distributed, read_weights_of
from prunerecover.checkpoint.ledger_record import KEY, LedgerRecord
from prunerecover.checkpoint.plain_data import foreign_class, read_without_executing
from prunerecover.checkpoint.weights_file import Weights
from prunerecover.files.checksums import check_sums
from prunerecover.model.settings import Use
from prunerecover.plan.plan import Plan
from prunerecover.recovery.lora import Adapters

COMPILED = "_orig_mod"


@dataclass(frozen=True)
class LightningFile:
    """What a checkpoint says.

    Attributes:
        path: The file, or the folder of a distributed checkpoint.
        plans: All edits so far of each network, by its path in the LightningModule; "" is the module itself.
        weights: The whole state dict, by canonical name.
        adapters: What is injected on each network after its edits, by the same paths.
        use: What the forward of each network had written on its modules, by the same paths.
        content: All that it holds; objects that are no plain data are `Foreign`.
    """

    path: Path
    plans: dict[str, Plan]
    weights: dict[str, Tensor]
    adapters: dict[str, Adapters] = field(default_factory=dict)
    use: dict[str, Use] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict)

    @property
    def class_path(self) -> str | None:
        """The LightningModule's, where LightningCLI noted it."""
        return self._hparams.get("_class_path")

    @property
    def foreign(self) -> dict[str, str]:
        """The class paths of hyperparameters that are no plain data, by name."""
        found = {name: foreign_class(value) for name, value in self._hparams.items()}
        return {name: path for name, path in found.items() if path is not None}

    @property
    def _hparams(self) -> Mapping[str, Any]:
        hparams = self.content.get("hyper_parameters")
        return hparams if isinstance(hparams, Mapping) else {}

    @property
    def networks(self) -> dict[str, Plan]:
        """The plan of each network that was pruned or adapted; one that was not pruned has a plan without edits."""
        bare = {target: Plan(source=adapters.source) for target, adapters in self.adapters.items()}
        return self.plans | {target: plan for target, plan in bare.items() if not self._has_edits(target)}

    def _has_edits(self, target: str) -> bool:
        return target in self.plans and bool(self.plans[target].edits)

    def weights_of(self, target: str) -> Weights:
        """Return the weights of the network at `target`, by their names in it."""
        prefix = _prefix(target)
        own = {n.removeprefix(prefix): value for n, value in self.weights.items() if n.startswith(prefix)}
        odd = [name for name, value in own.items() if not isinstance(value, Tensor)]
        if odd:
            raise ValueError(
                f"Expected tensors as the weights of '{target}' in {self.path}, but '{odd[0]}' is "
                f"{type(own[odd[0]]).__name__}. Was the checkpoint edited?"
            )
        return Weights(own, use=self.use.get(target, {}))

    def beside(self, target: str) -> list[str]:
        """Return the names of the weights that do not belong to the network at `target`."""
        return [name for name in self.weights if not name.startswith(_prefix(target))]

    def has_structure_of(self, weights: Mapping[str, Tensor]) -> bool:
        """Whether another state dict has the same names and shapes in all networks that were changed."""
        prefixes = tuple(map(_prefix, self.networks))
        mine, theirs = (
            {name: getattr(value, "shape", None) for name, value in state.items() if name.startswith(prefixes)}
            for state in (self.weights, weights)
        )
        return mine == theirs


def read_checkpoint(path: Path) -> LightningFile:
    """Read a file that a Trainer saved, or the folder of a distributed checkpoint.

    Raises:
        ValueError: If it cannot be read, is no Lightning checkpoint, has no ledger, or one
            of a newer schema.
    """
    checkpoint = _load_folder(path) if is_distributed(path) else _load(path)
    if not isinstance(checkpoint, Mapping) or not isinstance(checkpoint.get("state_dict"), Mapping):
        raise ValueError(
            f"Expected a Lightning checkpoint or a folder of save_pruned, but {path} holds no 'state_dict'. "
            "Weights alone do not tell a pruned structure: apply the plan to the model, then load them."
        )
    odd = [name for name in checkpoint["state_dict"] if not isinstance(name, str)]
    if odd:
        raise ValueError(
            f"Expected weights by name in the 'state_dict' of {path}, but got one by {odd[0]!r:.60}. Was it edited?"
        )
    if KEY not in checkpoint:
        raise ValueError(
            f"Expected a checkpoint of a pruned model, but {path} was saved by a run without DepthPrune. It is dense: "
            "use the LightningModule's own load_from_checkpoint."
        )
    record = LedgerRecord.from_dict(checkpoint[KEY], path)
    weights = {canonical(name): value for name, value in checkpoint["state_dict"].items()}
    return LightningFile(path, record.plans, weights, record.adapters, record.use, checkpoint)


def canonical(name: str) -> str:
    """Strip the wrapper of `torch.compile(model)` from a path or a name in a state dict.

    >>> canonical("model._orig_mod.head.weight")
    'model.head.weight'
    """
    return ".".join(part for part in name.split(".") if part != COMPILED)


def _prefix(target: str) -> str:
    return f"{canonical(target)}." if canonical(target) else ""


@contextmanager
def before_loading(cls: type[nn.Module], file: LightningFile, act: Callable[[Any], None]) -> Iterator[None]:
    """Inside the block, let `act` see an instance of `cls` right before it loads the weights of `file`.

    `load_from_checkpoint` builds an instance that nobody can reach before its weights are loaded; this is the moment to
    give it the structure they are for. Other weights (of a teacher that `__init__` loads) are loaded as ever.
    """
    own = vars(cls).get("load_state_dict")
    load = cls.load_state_dict
    acted: set[nn.Module] = set()  # where the module is the network itself, `act` loads weights into it, too

    def load_state_dict(module: Any, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        weights = {canonical(name): value for name, value in state_dict.items()}
        if module not in acted and file.has_structure_of(weights):
            acted.add(module)
            act(module)
            names = {canonical(name): name for name in module.state_dict()}
            state_dict = {names.get(name, name): value for name, value in weights.items()}
        return load(module, state_dict, *args, **kwargs)

    cls.load_state_dict = load_state_dict  # type: ignore[assignment]
    try:
        yield
    finally:
        if own is None:
            del cls.load_state_dict
        else:
            cls.load_state_dict = own  # type: ignore[method-assign]


def _load_folder(path: Path) -> Any:
    if not (path / META).is_file():
        raise ValueError(
            f"Expected a distributed checkpoint of Lightning, but {path} has no {META}, which holds what was pruned. "
            "Is the folder complete? Copy it again."
        )
    rest = _load(path / META)
    if not isinstance(rest, Mapping) or KEY not in rest:
        return {**(rest if isinstance(rest, Mapping) else {}), "state_dict": {}}
    return {**rest, "state_dict": read_weights_of(path)}


def _load(path: Path) -> Any:
    try:
        check_sums(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        pass  # no plain data, or no file of torch.save at all
    except Exception as error:  # whatever a broken pickle leads to
        raise ValueError(_unreadable(path, error)) from None
    try:
        return read_without_executing(path)
    except Exception as error:  # whatever a stand-in cannot do
        raise ValueError(_unreadable(path, error)) from None


def _unreadable(path: Path, error: Exception) -> str:
    what = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
    return (
        f"Expected a Lightning checkpoint or a folder of save_pruned, but {path} cannot be read as one ({what}). "
        "Is the file cut off? Copy it again, or name the folder of save_pruned."
    )
