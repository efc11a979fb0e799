"""What `prunerecover plan` runs: a method that decides, fed with what the network gets at the start of a recipe's fit.

A method is a class, so that the command line can name any of them (`--method depth`, `--method boundary`, or your own
class path) with its arguments (`--method.remove '{"activation": 3}'`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from prunerecover.budget import Budget
from prunerecover.callbacks.depth_prune import DepthPrune
from prunerecover.callbacks.nested import at_start_of_fit
from prunerecover.callbacks.target import find_target
from prunerecover.plan import Plan
from prunerecover.recipes.model_names import expand


@dataclass(frozen=True)
class PlanTask:
    """What a method decides about.

    Attributes:
        module: Holds the dense network.
        datamodule: Its data; None: the module has its own.
        target: Path of the network in the module.
        calibration: How many training samples to calibrate on; `capture_inputs` draws them.
        output: The plan's file; what else a method writes goes beside it.
    """

    module: pl.LightningModule
    datamodule: pl.LightningDataModule | None
    target: str
    calibration: int
    output: Path


class PlanMethod(ABC):
    """Decides what to remove from a network."""

    def find(self, module: pl.LightningModule, target: str | None) -> str:
        """Return the path of the network that this method can decide about: the only supported one by default."""
        return find_target(module, target)

    @abstractmethod
    def make(self, task: PlanTask) -> Plan:
        """Return the plan; network and module stay as they are."""

    def write(self, plan: Plan, output: Path) -> None:
        """Write the plan and whatever there is to look at; on one rank."""
        plan.save(output)


def beside(output: Path, ending: str) -> Path:
    """Return the path of what lies beside a plan, named as `Plan.save` names the fitted tensors.

    >>> beside(Path("plans/vit.json"), ".md").name
    'vit.md'
    """
    return output.with_name(output.name.removesuffix(".json") + ending)


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
        budget = Budget(**{name: value for name, value in given.items() if value is not None})
        self.planning: dict[str, Any] = {"budget": budget, "importance": importance, "replace": replace}
        self.planning |= {"search": search, "ignore": tuple(ignore or ()), "seed": seed}

    def make(self, task: PlanTask) -> Plan:
        """Return the plan that `DepthPrune` would make at the start of a fit."""
        prune = DepthPrune(**self.planning, calibration=task.calibration)

        def decide(trainer: pl.Trainer, module: pl.LightningModule) -> Plan:
            return prune.decide(trainer, module, task.target, prune.budget)

        return at_start_of_fit(task.module, task.datamodule, decide, prune.seed)


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
        target: Path of the network in the module; None: the only one that the method can decide about.
        ckpt_path: A Lightning checkpoint with the weights to plan for; None: those of the module.
        device: Where to calibrate.
        output: The plan's file.

    Raises:
        ValueError: If the checkpoint is of a pruned model.
    """
    if ckpt_path is not None:
        load_dense_weights(module, ckpt_path)
    path = method.find(module.to(device), target)
    return method.make(PlanTask(module, datamodule, path, calibration, output))


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
