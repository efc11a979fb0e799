"""A journal of reversible changes to a model; can be kept on the CPU, pickled and deep-copied."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from prunerecover.families.describe import unnamed_stacks
from prunerecover.families.standard_saving import check_saving, uncheck_saving
from prunerecover.families.transformers_layers import is_transformers_config
from prunerecover.model.evaluation import device_of
from prunerecover.model.paths import get_module, holder_of, set_module
from prunerecover.surgery.forward.changes import Change, moved
from prunerecover.surgery.forward.rewritten_forward import reroute
from prunerecover.surgery.transformers_depth import apply_config, check_depth, config_edits, numbered_after


@dataclass(frozen=True)
class Replaced(Change):
    """Replacement of parts or attributes of modules at `places`: path of a module, name in it, and the old value."""

    places: tuple[tuple[str, str, Any], ...]

    @property
    def parts(self) -> Iterable[Any]:
        """The old values."""
        return (old for *_, old in self.places)

    def undo(self, model: nn.Module, device: torch.device) -> None:
        """Put the old values back."""
        for path, name, old in self.places:
            holder = get_module(model, path)
            if getattr(holder, name) is not old:
                _put(holder, name, moved(old, device))


@dataclass(frozen=True)
class BlockRemoved(Change):
    """Removal of block `index` of `count` in the container at `path`, with the container's training mode."""

    path: str
    index: int
    count: int
    old: nn.Module
    training: bool

    @property
    def parts(self) -> Iterable[Any]:
        """The block."""
        return (self.old,)

    def undo(self, model: nn.Module, device: torch.device) -> None:
        """Put the block back."""
        blocks = get_module(model, self.path)
        assert isinstance(blocks, nn.Sequential | nn.ModuleList)
        if len(blocks) == self.count:
            return
        if self.training != blocks.training:  # else each part of the block keeps its own mode
            self.old.train(blocks.training)
        blocks.insert(self.index, moved(self.old, device))


@dataclass(frozen=True)
class SavingChecked(Change):
    """A check in `save_pretrained` of transformers models in the network, which warns."""

    def undo(self, model: nn.Module, device: torch.device) -> None:
        """Save without a check, as before."""
        uncheck_saving(model, "surgery")


@dataclass
class Journal:
    """A stack of reversible changes to a model, each noted before it is made: an error may come at any moment.

    >>> net = nn.Sequential(nn.ReLU(), nn.Tanh())
    >>> journal = Journal()
    >>> journal.remove_block(net, "", 0)
    >>> journal.replace_module(net, "0", nn.Identity())
    >>> journal.undo(net)
    >>> net
    Sequential(
      (0): ReLU()
      (1): Tanh()
    )
    """

    entries: list[Change] = field(default_factory=list)

    def replace_module(self, model: nn.Module, path: str, new: nn.Module) -> None:
        """Replace a submodule.

        Args:
            model: Network without wrappers.
            path: Path of the submodule.
            new: New module.

        Raises:
            ValueError: If the model has no such submodule.
        """
        get_module(model, path)
        parent, _, name = path.rpartition(".")
        self.replace(model, [(parent, name)], new)

    def remove_block(self, model: nn.Module, container: str, index: int) -> None:
        """Remove a block; the later blocks move up by one.

        Layers of transformers models without a supported family are found by the length in the config. There, the
        config (Nemotron-H counts the layers by their types) and the numbers of the later layers follow at once.

        Args:
            model: Network without wrappers.
            container: Path of the ModuleList or Sequential of blocks.
            index: Present index of the block.
        """
        blocks = get_module(model, container)
        assert isinstance(blocks, nn.Sequential | nn.ModuleList)
        stack = next((stack for stack in unnamed_stacks(model) if stack.container == container), None)
        moved = numbered_after(model, stack, index) if stack else []
        if stack:
            self.copy_configs(model)
            kept = [number for number in range(len(blocks)) if number != index]
            apply_config(model, config_edits(model, kept, stack))
        self.entries.append(BlockRemoved(container, index, len(blocks), blocks[index], blocks.training))
        del blocks[index]
        for path, number in moved:
            self.set_attribute(model, path, "layer_idx", number)

    def reroute(self, model: nn.Module, path: str, calls: Sequence[str]) -> None:
        """Remove calls from the forward of a module; the module stays the same object.

        Args:
            model: Network without wrappers.
            path: Path of the module; the empty path is the model itself.
            calls: Names of calls, see `find_rewriting`.

        Raises:
            ValueError: If the forward cannot be traced, or lacks a call.
        """
        reroute(model, path, calls, self.entries)

    def set_config(self, model: nn.Module, edits: dict[str, Any]) -> None:
        """Set entries of a transformers config.

        Raises:
            ValueError: If the config would name another depth than the model's.
        """
        check_depth(model, edits)
        self.copy_configs(model)
        apply_config(model, edits)

    def copy_configs(self, model: nn.Module, *others: Any) -> None:
        """Copy the transformers configs and `others` that the model holds: further models may hold the originals."""
        places = tuple(
            (path, name, value)
            for path, module in model.named_modules()
            for name, value in vars(module).items()
            if is_transformers_config(value) or any(value is other for other in others)
        )
        memo: dict[int, Any] = {}  # shared by all copies: a config may be an entry of another
        copies = [copy.deepcopy(old, memo) for *_, old in places]
        self.entries.append(Replaced(places))
        for (path, name, _), new in zip(places, copies, strict=True):
            setattr(get_module(model, path), name, new)

    def replace(self, model: nn.Module, places: Iterable[tuple[str, str]], new: Any) -> None:
        """Replace a parameter, buffer, submodule or attribute.

        Args:
            model: Network without wrappers.
            places: All places of the old value: path of a module, and the name in the module.
            new: New value; a tensor may have another shape, and a module gets the training mode of the old.
        """
        held = [(path, name, get_module(model, path)) for path, name in places]
        self.entries.append(Replaced(tuple((path, name, getattr(holder, name)) for path, name, holder in held)))
        for _, name, holder in held:
            _put(holder, name, new)

    def set_attribute(self, model: nn.Module, path: str, attribute: str, value: Any) -> None:
        """Set an attribute of a module, or of its config, which is copied first.

        Args:
            model: Network without wrappers.
            path: Path of the module.
            attribute: Name of the attribute, or `config.name` for an entry of the config.
            value: New value.
        """
        module = get_module(model, path)
        holder, name = holder_of(module, attribute)
        if holder is module:
            self.replace(model, [(path, name)], value)
        else:
            self.copy_configs(model, getattr(module, attribute.partition(".")[0]))
            setattr(*holder_of(module, attribute), value)

    def check_saving(self, model: nn.Module) -> None:
        """Make transformers models warn when saved in a form unknown to `from_pretrained`."""
        self.entries.append(SavingChecked())
        check_saving(model, "surgery")

    def undo(self, model: nn.Module, keep: int = 0) -> None:
        """Take back all changes but the first `keep`, last first. Removed parts return to the model's device."""
        device = device_of(model)
        while len(self.entries) > keep:
            self.entries.pop().undo(model, device)

    def to_cpu(self) -> None:
        """Move removed parts to the CPU, where they wait for an undo without device memory."""
        for part in (part for entry in self.entries for part in entry.parts):
            moved(part, torch.device("cpu"))


def _put(holder: nn.Module, name: str, value: Any) -> None:
    if isinstance(value, nn.Module):
        set_module(holder, name, value)
    else:
        setattr(holder, name, value)
