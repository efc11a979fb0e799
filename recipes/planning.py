"""What `prunerecover plan` runs: a method that decides, fed with calibration batches of the recipe's training data.

A method is a class, so that the command line can name any of them (`--method depth`, `--method boundary`, or your own
class path) with its arguments (`--method.remove '{"activation": 3}'`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map

from prunerecover.batches import as_inputs, call, predictions_of
from prunerecover.budget import Budget
from prunerecover.callbacks.target import find_target
from prunerecover.depth import plan_depth
from prunerecover.plan import Plan
from prunerecover.recipes.model_names import expand
from prunerecover.scoring import split_labels
from prunerecover.structure import get_module

Loss = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class PlanTask:
    """What a method decides about.

    Attributes:
        network: The dense network.
        batches: Calibration batches as the training loader gives them.
        loss: `loss(network, batch)`, a scalar, for methods that need labels.
        module: The module that holds the network.
        datamodule: Its data; None: the module has its own.
        target: Path of the network in the module.
        output: The plan's file; what else a method writes goes beside it.
    """

    network: nn.Module
    batches: Sequence[Any]
    loss: Loss
    module: pl.LightningModule
    datamodule: pl.LightningDataModule | None
    target: str
    output: Path


class PlanMethod(ABC):
    """Decides what to remove from a network."""

    @abstractmethod
    def make(self, task: PlanTask) -> Plan:
        """Return the plan; network and module stay as they are."""

    def write(self, plan: Plan, output: Path) -> None:
        """Write the plan and whatever there is to look at; on one rank."""
        plan.save(output)


class DepthPlan(PlanMethod):
    """Remove whole blocks, attentions, MLPs or activations (`plan_depth`).

    Args:
        remove: Units per kind, for example `{"activation": 3, "attention": 2}`. Give exactly one budget.
        ratio: Share of the units per kind.
        macs: Share of the MACs to remove.
        params: Share of the parameters to remove.
        latency: Share of the measured latency to remove.
        importance: What ranks the units; the default needs no labels.
        replace: What removed units leave: `calibrated`, `zero` or `identity`.
        search: `one_shot` or `greedy`; None takes the better one that is possible.
        ignore: Shell patterns of units that stay.
        seed: Of everything random.
    """

    def __init__(
        self,
        remove: dict[str, int] | None = None,
        ratio: dict[str, float] | None = None,
        macs: float | None = None,
        params: float | None = None,
        latency: float | None = None,
        importance: str = "output_divergence",
        replace: str = "calibrated",
        search: str | None = None,
        ignore: list[str] | None = None,
        seed: int = 0,
    ) -> None:
        given: dict[str, Any] = {"remove": remove, "ratio": ratio, "macs": macs, "params": params, "latency": latency}
        self.budget = Budget(**{name: value for name, value in given.items() if value is not None})
        self.importance, self.replace, self.search = importance, replace, search
        self.ignore, self.seed = tuple(ignore or ()), seed

    def make(self, task: PlanTask) -> Plan:
        """Return the plan of `plan_depth`."""
        return plan_depth(
            task.network,
            self.budget,
            batches=task.batches,
            importance=self.importance,
            loss=task.loss,
            replace=self.replace,
            search=self.search,
            ignore=self.ignore,
            seed=self.seed,
        )


def plan_with(
    method: PlanMethod,
    module: pl.LightningModule,
    datamodule: pl.LightningDataModule | None,
    calibration: int,
    target: str | None,
    ckpt_path: str | None,
    device: torch.device,
    output: Path,
) -> Plan:
    """Make a plan for the network in `module` from training samples.

    Args:
        method: How to decide.
        module: Holds the network; unchanged.
        datamodule: Gives the training loader; None: the module does.
        calibration: Samples to use.
        target: Path of the network in the module; None: the only supported one.
        ckpt_path: A Lightning checkpoint with the weights to plan for; None: those of the module.
        device: Where to calibrate.
        output: The plan's file.

    Raises:
        ValueError: If the checkpoint is of a pruned model.
    """
    if ckpt_path is not None:
        load_dense_weights(module, ckpt_path)
    path = find_target(module.to(device), target)
    batches = list(calibration_batches(module, datamodule, calibration))
    loss = classification_loss(module)
    return method.make(PlanTask(get_module(module, path), batches, loss, module, datamodule, path, output))


def load_dense_weights(module: pl.LightningModule, path: str) -> None:
    """Load the weights of a checkpoint of the unpruned module.

    Raises:
        ValueError: If the file is of a pruned module.
    """
    checkpoint = torch.load(expand(path), map_location="cpu", weights_only=True)
    if any(plan["edits"] for plan in checkpoint.get("prunerecover", {}).get("plans", {}).values()):
        raise ValueError(
            f"Expected a checkpoint of the dense model at {path}, but it has been pruned already. "
            "Give one from before the surgery, or plan without --ckpt_path."
        )
    module.load_state_dict(checkpoint["state_dict"])


def calibration_batches(
    module: pl.LightningModule, datamodule: pl.LightningDataModule | None, samples: int
) -> Iterator[Any]:
    """Yield training batches until there are `samples`, the last one cut to fit."""
    if datamodule is not None:
        datamodule.prepare_data()
        datamodule.setup("fit")
    loader = (datamodule or module).train_dataloader()
    left = samples
    for batch in loader:
        size = as_inputs(batch).n_samples
        yield batch if size <= left else tree_map(partial(_first, count=left, size=size), batch)
        left -= size
        if left <= 0:
            return


def _first(leaf: Any, count: int, size: int) -> Any:
    return leaf[:count] if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == size else leaf


def classification_loss(module: pl.LightningModule) -> Loss:
    """Return the cross-entropy of a batch (inputs, labels); a module's label map is followed."""
    label_index = getattr(module, "label_index", None)

    def loss(network: nn.Module, batch: Any) -> Tensor:
        inputs, labels = split_labels(batch)
        device = next(network.parameters()).device
        logits = predictions_of(call(network, as_inputs(inputs).to(device)))
        labels = labels.to(device)
        return functional.cross_entropy(logits if label_index is None else logits[:, label_index], labels)

    return loss
