"""Collect calibration inputs of the target network from the user's own training data and training step.

A forward pre-hook on the target notes the arguments of its first call and ends the step there: the user's loss and
optimizer never run, whatever the step looks like. Samples are a seeded subset of the training set, the same on every rank
and whatever the random state is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.seed import isolate_rng
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset

from prunerecover.batches import ModelInputs
from prunerecover.structure import get_module, unwrap


class _Captured(BaseException):  # not an Exception: a user's own `except Exception` must not swallow it
    """The inputs are there; the rest of the training step is not wanted."""


def capture_inputs(
    trainer: pl.Trainer, module: pl.LightningModule, target: str, n_samples: int, seed: int
) -> list[ModelInputs]:
    """Return the target's inputs for at least `n_samples` training samples, or for all there are.

    The module is in evaluation mode meanwhile, and afterwards as before: modes, buffers, requires_grad flags, random state.

    Raises:
        ValueError: If there is no training data, or the training step never calls the target.
    """
    captured: list[ModelInputs] = []
    with isolate_rng(), ExitStack() as stack:
        pl.seed_everything(seed, verbose=False)
        stack.enter_context(_undisturbed(trainer, module))
        found = stack.enter_context(_stopped_at(unwrap(get_module(module, target))))
        for index, batch in enumerate(_calibration_batches(trainer, n_samples, seed)):
            inputs = _run_until_captured(trainer, module, batch, index, found)
            if inputs is None:
                raise ValueError(
                    f"Expected {type(module).__name__}.training_step to call the network at target='{target}', but it never "
                    "did. Is this the network that is trained?"
                )
            captured.append(inputs)
            if sum(c.n_samples for c in captured) >= n_samples:
                break
    if not captured:
        raise ValueError("Expected training data to calibrate on, but the train dataloader gave no batch.")
    return captured


def _run_until_captured(
    trainer: pl.Trainer, module: pl.LightningModule, batch: Any, index: int, found: list[ModelInputs]
) -> ModelInputs | None:
    found.clear()
    batch = trainer.strategy.precision_plugin.convert_input(batch)
    batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
    batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
    try:
        with trainer.strategy.precision_plugin.train_step_context():
            type(module).training_step(module, *_step_arguments(module, batch, index))
    except _Captured:
        return found[0]
    return None


def _step_arguments(module: pl.LightningModule, batch: Any, index: int) -> tuple[Any, ...]:
    parameters = type(module).training_step.__code__.co_varnames[1 : type(module).training_step.__code__.co_argcount]
    return (batch, index)[: max(1, len(parameters))]


@contextmanager
def _stopped_at(network: nn.Module) -> Iterator[list[ModelInputs]]:
    found: list[ModelInputs] = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append(ModelInputs(args, dict(kwargs)))
        raise _Captured

    handle = network.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()


@contextmanager
def _undisturbed(trainer: pl.Trainer, module: pl.LightningModule) -> Iterator[None]:
    """Keep what a training step may touch before it reaches the target: modes, flags, buffers, logs, other optimizers."""
    modes = [(m, m.training) for m in module.modules()]
    flags = [(p, p.requires_grad) for p in module.parameters()]
    buffers = [(b, b.clone()) for b in module.buffers()]
    silenced = {"log": _ignore, "log_dict": _ignore, "manual_backward": _ignore}
    own = {name: vars(module).get(name) for name in silenced}
    steps = [(o, vars(o).get("step")) for o in trainer.strategy._lightning_optimizers]
    try:
        for name, stand_in in silenced.items():
            object.__setattr__(module, name, stand_in)
        for optimizer, _ in steps:
            optimizer.step = _ignore  # type: ignore[method-assign]
        module.eval()
        yield
    finally:
        for name, value in own.items():
            _put_back(module, name, value)
        for optimizer, step in steps:
            _put_back(optimizer, "step", step)
        for m, mode in modes:
            m.training = mode
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Stand in for logging and optimizer calls."""


def _put_back(holder: Any, name: str, value: Any) -> None:
    if value is None:
        vars(holder).pop(name, None)
    else:
        object.__setattr__(holder, name, value)


def _calibration_batches(trainer: pl.Trainer, n_samples: int, seed: int) -> Iterable[Any]:
    loaders = trainer.train_dataloader
    if loaders is None:
        trainer.fit_loop.setup_data()
        loaders = trainer.train_dataloader
    if isinstance(loaders, DataLoader):
        return _subset(loaders, n_samples, seed)
    combined = trainer.fit_loop._combined_loader
    if combined is not None and not isinstance(loaders, list | tuple | dict):
        return islice(iter(loaders), n_samples)
    assert combined is not None
    from torch.utils._pytree import tree_map

    subsets = tree_map(lambda dl: _subset(dl, n_samples, seed) if isinstance(dl, DataLoader) else dl, loaders)
    return (batch for batch, _, _ in CombinedLoader(subsets, combined._mode))


def _subset(loader: DataLoader[Any], n_samples: int, seed: int) -> Iterable[Any]:
    """A loader of `n_samples` seeded random samples, which leaves the user's loader and its workers alone."""
    make: Callable[..., DataLoader[Any]] = DataLoader
    common = {"collate_fn": loader.collate_fn, "batch_size": loader.batch_size or 1}
    if isinstance(loader.dataset, IterableDataset):
        return islice(make(loader.dataset, **common), n_samples)
    size = len(loader.dataset)  # type: ignore[arg-type]
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    return make(Subset(loader.dataset, order[:n_samples].tolist()), **common)
