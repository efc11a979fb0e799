"""Reading of a Lightning checkpoint without Lightning: the ledger of the callbacks, and the networks' weights.

A checkpoint is a file, the folder of a strategy that shards the model (`distributed_folder`), or the folder of a
transformers Trainer (`trainer_folder`). Of the ledger (`ledger_record`), only the plans and the adapters count here;
all further entries serve the callbacks. Nothing in a file is executed.
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
from prunerecover.checkpoint.trainer_folder import is_of_trainer, read_trainer_folder, within_model
from prunerecover.checkpoint.weights_file import Weights
from prunerecover.files.checksums import check_sums
from prunerecover.model.settings import Use
from prunerecover.plan.plan import Plan
from prunerecover.recovery.lora import Adapters

COMPILED = "_orig_mod"


@dataclass(frozen=True)
class LightningFile:
    """Content of a checkpoint.

    Attributes:
        path: File, or folder of a distributed checkpoint.
        plans: All edits of each network so far, by path of the network in the LightningModule; "" is the module itself.
        weights: Whole state dict, by canonical name.
        adapters: Adapters injected on each network after the edits, by path of the network.
        use: Attributes written by each network's forward on its modules, by path of the network.
        content: Full content; objects outside plain data are `Foreign`.
    """

    path: Path
    plans: dict[str, Plan]
    weights: dict[str, Tensor]
    adapters: dict[str, Adapters] = field(default_factory=dict)
    use: dict[str, Use] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict)

    @property
    def class_path(self) -> str | None:
        """Class path of the LightningModule, if noted by LightningCLI."""
        return self._hparams.get("_class_path")

    @property
    def foreign(self) -> dict[str, str]:
        """Class paths of hyperparameters outside plain data, by name."""
        found = {name: foreign_class(value) for name, value in self._hparams.items()}
        return {name: path for name, path in found.items() if path is not None}

    @property
    def _hparams(self) -> Mapping[str, Any]:
        hparams = self.content.get("hyper_parameters")
        return hparams if isinstance(hparams, Mapping) else {}

    @property
    def networks(self) -> dict[str, Plan]:
        """Plans of the pruned or adapted networks; the plan of a network without pruning has no edits."""
        bare = {target: Plan(source=adapters.source) for target, adapters in self.adapters.items()}
        return self.plans | {target: plan for target, plan in bare.items() if not self._has_edits(target)}

    def _has_edits(self, target: str) -> bool:
        return target in self.plans and bool(self.plans[target].edits)

    def weights_of(self, target: str) -> Weights:
        """Return the weights of the network at `target`, by name in the network."""
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
        """Return the names of the weights outside the network at `target`."""
        return [name for name in self.weights if not name.startswith(_prefix(target))]

    def has_structure_of(self, weights: Mapping[str, Tensor]) -> bool:
        """Whether another state dict has the same names and shapes in all changed networks."""
        prefixes = tuple(map(_prefix, self.networks))
        mine, theirs = (
            {name: getattr(value, "shape", None) for name, value in state.items() if name.startswith(prefixes)}
            for state in (self.weights, weights)
        )
        return mine == theirs


def is_checkpoint(path: Path) -> bool:
    """Whether the path is a file, or a folder of a Trainer."""
    return path.is_file() or is_distributed(path) or is_of_trainer(path)


def read_checkpoint(path: Path) -> LightningFile:
    """Read a file saved by a Trainer, or the folder of a distributed checkpoint or of a transformers Trainer.

    Raises:
        ValueError: If the path cannot be read, is no Lightning checkpoint, or has no ledger or a ledger of a newer
            schema.
    """
    read = _load_folder if is_distributed(path) else read_trainer_folder if is_of_trainer(path) else _load
    checkpoint = read(path)
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
    plans, adapters, use = record.plans, record.adapters, record.use
    if is_of_trainer(path):
        plans, adapters, use = within_model(plans), within_model(adapters), within_model(use)
    return LightningFile(path, plans, weights, adapters, use, checkpoint)


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
    """Call `act`, inside a `with` block, on an instance of `cls` right before it loads the weights of `file`.

    `load_from_checkpoint` builds an instance out of reach until the weights are loaded; `act` can give the instance the
    structure of the weights in time. Further weights (of a teacher loaded in `__init__`) load as usual.
    """
    own = vars(cls).get("load_state_dict")
    load = cls.load_state_dict
    acted: set[nn.Module] = set()  # where the module is the network itself, `act` loads weights as well

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
        pass  # more than plain data, or no file of torch.save at all
    except Exception as error:  # any error of a broken pickle
        raise ValueError(_unreadable(path, error)) from None
    try:
        return read_without_executing(path)
    except Exception as error:  # any error of a stand-in
        raise ValueError(_unreadable(path, error)) from None


def _unreadable(path: Path, error: Exception) -> str:
    what = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
    return (
        f"Expected a Lightning checkpoint or a folder of save_pruned, but {path} cannot be read as one ({what}). "
        "Is the file cut off? Copy it again, or name the folder of save_pruned."
    )
