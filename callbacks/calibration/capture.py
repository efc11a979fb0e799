"""Calibration inputs of the target network, collected from the user's own training data and training step.

A forward pre-hook on the target notes the arguments of the first call in a step and ends the step there: the user's
loss and optimizer never run, whatever the code of the step.

Loaders, samplers and workers are not disturbed. Samples are a seeded random subset of the training set, the same on
every rank, independent of the random state. A custom sampler is followed, on a copy: it may exclude validation samples,
or weigh classes.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterable, Iterator, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)
from torchmetrics import Metric

from prunerecover.callbacks.ledger.random_state import isolated, seed_all
from prunerecover.display.progress import progress
from prunerecover.model.batches import ModelInputs
from prunerecover.model.evaluation import evaluating, uncompiled
from prunerecover.model.hooks import Reached, removed_after
from prunerecover.model.paths import get_module, unwrap

WHOLE_DATASET = (RandomSampler, SequentialSampler, DistributedSampler)


@dataclass(frozen=True)
class CapturedInputs(ModelInputs):
    """Arguments of a call of the target, with the batch of the training step: a `loss` needs the labels."""

    batch: Any = None
    index: int = 0


def capture_inputs(
    trainer: pl.Trainer, module: pl.LightningModule, target: str, n_samples: int, seed: int, most: int | None = None
) -> list[CapturedInputs]:
    """Return the target's inputs for about `n_samples` training samples, or for all samples if there are fewer.

    Fewer samples come if the training step skips batches, as only running the step can show.

    The module is in evaluation mode meanwhile; modes, buffers, attributes, requires_grad flags and the random state are
    restored afterwards. Inputs carry no gradients and have the dtype of the target's weights.

    Args:
        trainer: Trainer in a fit.
        module: LightningModule whose training step runs.
        target: Path of the network in the module.
        n_samples: Number of samples, all batches together.
        seed: Seed of the choice of samples, and of random numbers in the training step.
        most: Number of batches at most, the first ones; None: no limit.

    Raises:
        ValueError: If there is no training data, or the training step never calls the target.
    """
    network = unwrap(get_module(module, target))
    captured: list[CapturedInputs] = []
    seen = 0
    with ExitStack() as stack:
        stack.enter_context(isolated())
        stack.enter_context(progress("collecting calibration samples"))
        for context in (evaluating(module), uncompiled(), torch.enable_grad(), undisturbed(trainer, module)):
            stack.enter_context(context)
        found = stack.enter_context(_stopped_at(network))
        seed_all(seed)
        for index, batch in enumerate(calibration_batches(trainer, n_samples, seed)):
            seen = index + 1
            inputs = _run_until_captured(trainer, module, _on_device(trainer, module, batch), index, found)
            if inputs is None:  # a step may skip batches
                continue
            captured.append(inputs)
            if len(captured) == most or sum(c.n_samples for c in captured) >= n_samples:
                break
    if seen and not captured and not target:
        raise ValueError(
            f"Expected {type(module).__name__}.training_step to call the module itself, self(...), because target='' "
            "declares the module as the network, but it never did. Move the computation of the outputs to forward."
        )
    if seen and not captured:
        raise ValueError(
            f"Expected {type(module).__name__}.training_step to call the network at target='{target}', but it never "
            "did. Is this the trained network, and is it called as a whole?"
        )
    if not captured:
        raise ValueError("Expected training data to calibrate on, but the train dataloader gave no batch.")
    return captured


def _run_until_captured(
    trainer: pl.Trainer, module: pl.LightningModule, batch: Any, index: int, found: list[ModelInputs]
) -> CapturedInputs | None:
    found.clear()
    try:
        with trainer.strategy.precision_plugin.train_step_context():
            module.training_step(*step_arguments(module, batch, index))
    except Reached:
        return CapturedInputs(found[0].args, found[0].kwargs, batch, index)
    return None


def _on_device(trainer: pl.Trainer, module: pl.LightningModule, batch: Any) -> Any:
    """Prepare a batch as Lightning does: precision, the user's transfer hooks, device."""
    batch = trainer.strategy.precision_plugin.convert_input(batch)
    batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
    return trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def step_arguments(module: pl.LightningModule, batch: Any, index: int) -> tuple[Any, ...]:
    """Return the arguments with which Lightning would call the training step.

    Args:
        module: LightningModule of the training step, with or without an index argument, or with a `dataloader_iter`.
        batch: Batch on the device, in the form passed to the step.
        index: Number `batch_idx` of the step.
    """
    _, *parameters = inspect.signature(type(module).training_step).parameters.values()
    if any(p.name == "dataloader_iter" for p in parameters):
        return (iter([(batch, index, 0)]),)
    takes_index = len(parameters) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return (batch, index) if takes_index else (batch,)


def _at_rest(inputs: ModelInputs, network: nn.Module) -> ModelInputs:
    """Detach the inputs and undo autocast before the target: planning runs without autocast."""
    dtype = next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)

    def visit(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.detach().to(dtype) if leaf.is_floating_point() else leaf.detach()

    args, kwargs = tree_map(visit, (inputs.args, inputs.kwargs))
    return ModelInputs(args, kwargs)


@contextmanager
def _stopped_at(network: nn.Module) -> Iterator[list[ModelInputs]]:
    found: list[ModelInputs] = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append(_at_rest(ModelInputs(args, dict(kwargs)), network))
        raise Reached

    with removed_after(network.register_forward_pre_hook(stop, with_kwargs=True)):
        yield found


@contextmanager
def undisturbed(trainer: pl.Trainer, module: pl.LightningModule) -> Iterator[None]:
    """Preserve everything a step may touch: attributes and flags, logs, metrics, other optimizers."""
    wrapped: Any = module.optimizers()
    optimizers = [*trainer.optimizers, *(wrapped if isinstance(wrapped, list) else [wrapped])]
    kept = [(holder, dict(vars(holder))) for holder in (module, *optimizers)]
    kept += [(m, tree_map(_copied, dict(vars(m)))) for m in module.modules() if isinstance(m, Metric)]
    flags = [(p, p.requires_grad) for p in module.parameters()]
    try:
        for name in ("log", "log_dict", "manual_backward"):
            vars(module)[name] = _ignore
        for optimizer in optimizers:
            vars(optimizer)["step"] = _ignore
        yield
    finally:
        for holder, attributes in kept:
            vars(holder).clear()
            vars(holder).update(attributes)
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Replace logging, backward passes and optimizer steps."""


def calibration_batches(trainer: pl.Trainer, n_samples: int, seed: int) -> Iterator[Any]:
    """Yield batches of about `n_samples` samples in the form expected by the training step.

    Args:
        trainer: Trainer in a fit.
        n_samples: Number of samples per dataloader.
        seed: Seed of the subset.
    """
    combined = trainer.fit_loop._combined_loader
    assert combined is not None, "a fit without training data never gets here"
    loaders = tree_map(lambda leaf: _quiet_loader(leaf, n_samples, seed), combined.iterables)
    for batch, _, _ in CombinedLoader(loaders, combined._mode):
        yield batch


def _quiet_loader(loader: Any, n_samples: int, seed: int) -> Iterable[Any]:
    """Return a loader of some of the same samples, without worker processes."""
    if not isinstance(loader, DataLoader):
        return cast(Iterable[Any], _own_copy(loader))
    dataset: Dataset[Any] = loader.dataset
    if isinstance(dataset, IterableDataset):
        return DataLoader(_own_copy(dataset), batch_size=loader.batch_size, collate_fn=loader.collate_fn)
    batch_sampler = loader.batch_sampler
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        own = copy.deepcopy(batch_sampler, {id(dataset): dataset})
        return DataLoader(dataset, batch_sampler=own, collate_fn=loader.collate_fn)
    size = loader.batch_size or 1
    wanted = math.ceil(n_samples / size) * size if loader.drop_last else n_samples
    indices = _indices(loader, wanted, seed)
    return DataLoader(
        Subset(dataset, indices),
        batch_size=loader.batch_size,
        collate_fn=loader.collate_fn,
        drop_last=loader.drop_last and len(indices) >= size,
    )


def _indices(loader: DataLoader[Any], n: int, seed: int) -> list[int]:
    if type(loader.sampler) in WHOLE_DATASET:
        order = torch.randperm(len(cast(Sized, loader.dataset)), generator=torch.Generator().manual_seed(seed))
        return cast(list[int], order[:n].tolist())
    sampler = copy.deepcopy(loader.sampler, {id(loader.dataset): loader.dataset})
    return list(islice(iter(sampler), n))


def _own_copy(data: Any) -> Any:
    """Copy a one-pass iterator, lest the epoch miss a batch; return other iterables themselves."""
    return copy.deepcopy(data) if hasattr(data, "__next__") else data
