"""DepthPrune: remove blocks, attentions, MLPs, activations or layers while a Trainer trains, tests or predicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
from torch import Tensor, nn

from prunerecover.callbacks.arguments import check_alone, check_one
from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.reconstructing import ReconstructingCallback
from prunerecover.callbacks.schedule import PruneSchedule
from prunerecover.depth.arguments import DepthConfig, budget_of, planned_by_parts
from prunerecover.depth.family.units import known_by_parts
from prunerecover.depth.feasible import check_feasible
from prunerecover.depth.plan_depth import depth_plan
from prunerecover.families.describe import is_supported
from prunerecover.importance.context import Importance
from prunerecover.model.arguments import check_patterns, patterns_of
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.budget import Budget
from prunerecover.plan.kinds import DEPTH_KINDS, FAMILY_KINDS
from prunerecover.plan.plan import Plan
from prunerecover.sites.find import find_units


class DepthPrune(ReconstructingCallback):
    """Prune the depth of a network inside any LightningModule, and keep training it.

    The surgery happens at the start of an epoch. Checkpoints hold what was done, so resuming, `test(ckpt_path="best")`
    and weights-only files work; optimizers, schedulers, averaged copies and DDP follow. Several of these on one module
    compose. In a second fit the same object goes on where it was; a new one starts its schedule anew.

    Args:
        budget: How much goes; exactly one of `budget`, `remove` and `plan`.
        remove: Units per kind, such as {"attention": 2, "activation": 6}.
        plan: A plan, or the path of one, which is read when a loop is set up, instead of deciding here. Also applied
            before test, validate and predict when no checkpoint says otherwise. In a fit, its fitted tensors are fitted
            anew if the weights have changed since.
        target: Path of the network inside the LightningModule; default: the single one of a supported family, else the
            only child with weights.
        importance: See `plan_depth`.
        loss: `loss(network, inputs) -> scalar` for importances that need one: call `network(*inputs.args,
            **inputs.kwargs)`; `inputs.batch` is what the training step was given, labels included. None: what the
            module's training step returns.
        replace: See `plan_depth`.
        search: See `plan_depth`.
        kinds: See `plan_depth`.
        include_strided: See `plan_depth`.
        reconstruct: Fit the weights that are left to what the network gave before, layer by layer, and keep that where
            it brings the output of samples that were held out nearer to what it was; see `reconstruct`.
            None: of networks that mostly normalise by BatchNorm.
        schedule: When; also the epoch to start at, or a dict of `PruneSchedule`'s arguments.
        calibration: Number of training samples to calibrate, reconstruct and recalibrate BatchNorm on.
        merge: "copy" saves a merged copy in `pruned/` beside the checkpoints at the end of the fit; "at_surgery" merges
            the live network; "never" does neither.
        ignore: Shell patterns of units that stay.
        seed: Of calibration samples and everything random in planning.
        store: Folder of what planning has found: a fit that is killed while it plans, and begun again, goes on there;
            see `plan_depth`, also for when to take another one. It is not deleted.

    Raises:
        ValueError: If the arguments do not fit together.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        remove: Mapping[str, int] | None = None,
        plan: str | Path | Plan | None = None,
        target: str | None = None,
        importance: Importance | str = "output_divergence",
        loss: Callable[[nn.Module, Any], Tensor] | None = None,
        replace: str = "calibrated",
        search: str | None = None,
        kinds: str | Sequence[str] | None = None,
        include_strided: bool = False,
        reconstruct: bool | None = None,
        schedule: PruneSchedule | int | dict[str, Any] | None = None,
        calibration: int = 192,
        merge: Literal["copy", "at_surgery", "never"] = "copy",
        ignore: Sequence[str] = (),
        seed: int = 0,
        store: str | Path | None = None,
    ) -> None:
        check_one({"budget": budget, "remove": remove, "plan": plan}, 'DepthPrune(remove={"attention": 2})')
        if plan is None:
            budget = budget_of(budget, remove)
        for kind in budget.kinds(()) if budget is not None else ():
            if kind not in DEPTH_KINDS:
                raise ValueError(
                    f"Expected kinds among {', '.join(DEPTH_KINDS)} for DepthPrune, but got '{kind}'. Channels, heads, "
                    "neurons and experts go with WidthPrune."
                )
        planning: dict[str, Any] = {
            "importance": importance,
            "loss": loss,
            "replace": replace,
            "search": search,
            "kinds": kinds,
            "include_strided": include_strided,
            "ignore": patterns_of(ignore),
            "store": store,
        }
        if plan is not None:
            check_alone(DepthPrune, planning)
        self.config = DepthConfig(**planning, seed=seed)
        super().__init__(
            budget,
            reconstruct=reconstruct,
            plan=plan,
            target=target,
            schedule=schedule,
            calibration=calibration,
            merge=merge,
            seed=seed,
        )

    @property
    def planning(self) -> dict[str, Any]:
        """What decides which units go, by argument; those that came later are named where they are given."""
        given = {name: value for name, value in vars(self.config).items() if name not in ("scores", "seed", "store")}
        return {name: value for name, value in given.items() if value or name not in ("kinds", "include_strided")}

    def units(self, network: nn.Module) -> dict[str, int]:
        """Return how many units of each kind there are; what only data shows is taken to be there.

        Raises:
            ValueError: If a ratio is asked for of units that only data shows.
        """
        kinds = () if self.budget is None else self.budget.kinds(())
        if known_by_parts(network, kinds):
            units = find_units(network, kinds=kinds or FAMILY_KINDS)
            return {kind: sum(unit.kind == kind for unit in units) for kind in FAMILY_KINDS}
        if self.budget is not None and self.budget.ratio is not None:
            raise ValueError(
                f"Expected remove=... or a share of a cost for {', '.join(kinds)} of {type(network).__name__}, whose "
                "units are known once data comes, but got ratio. Count them with find_units(network, batch, kinds)."
            )
        return dict(self.budget.remove or {}) if self.budget is not None else {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Resume; refuse a schedule that does not fit, and patterns in `ignore` that match nothing.

        Raises:
            ValueError: If either is so.
        """
        super().on_fit_start(trainer, pl_module)
        network = unwrap(get_module(pl_module, self.find(pl_module)))
        if self.config.ignore and is_supported(network) and not Ledger.of(pl_module).made_by(self._key(trainer)):
            check_patterns(self.config.ignore, [unit.name for unit in find_units(network)], "units")

    def check_feasible(self, surgery: Surgery, budget: Budget | None) -> None:
        """Raise ValueError if a budget is more than all units hold, as far as that is known without scores."""
        by_parts = budget is None or planned_by_parts(surgery.network, budget.kinds(()), self.config)
        if budget is not None and (not by_parts or (budget.share is not None and budget.latency is None)):
            check_feasible(surgery.untouched, budget, self.config)

    def decide(self, surgery: Surgery, budget: Budget | None) -> Plan:
        """Return `plan_depth`'s plan, calibrated on inputs that the network gets while training.

        Args:
            surgery: Network and captured inputs.
            budget: How much of the network, as it is now, goes.
        """
        assert budget is not None, "a plan is not decided about"
        config = self.config
        if config.reads_loss:
            config = dataclasses.replace(config, loss=config.loss or surgery.loss)
        return depth_plan(surgery.session(config.loss), budget, config)
