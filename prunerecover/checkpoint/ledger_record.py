"""The ledger in a checkpoint: surgeries by callbacks on the networks of a LightningModule, as primitives and tensors.

The key in the file is "prunerecover". Callbacks write the ledger and continue from it (`callbacks.ledger`);
`load_pruned` reads the plans and adapters, without Lightning. Entries missing in files of earlier versions have
defaults; unknown entries are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from prunerecover.files.in_short import in_short, validated
from prunerecover.model.settings import Use
from prunerecover.plan.kinds import TRAITS, plural
from prunerecover.plan.plan import Plan
from prunerecover.plan.records import Items
from prunerecover.recovery.lora import Adapters

KEY = "prunerecover"
SCHEMA = "prunerecover.ledger/1"
WRITTEN_APART = ("run", "plans", "adapters", "random_states", "use")

GroupNames = list[list[list[str]]]  # by optimizer and group: names of parameters, "" for a parameter of another part
GroupPositions = dict[str, list[int]]  # by name of a parameter: number of an optimizer and of a group in it


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class SurgeryEvent(_Record):
    """Record of a surgery.

    Attributes:
        by: Name of the callback, such as "DepthPrune.0".
        target: Path of the network.
        epoch: Epoch with the surgery at its start.
        step: Number of optimizer steps before the surgery.
        units: Removed units, named as in the network right before the surgery.
        params: Parameters of the network afterwards; 0 if nothing was removed.
        macs: MACs per calibration sample, afterwards; 0: not counted.
        seconds: Seconds for the decision; None if decided elsewhere.
        taken: Use of a budget shared by several surgeries: units by kind, or the share of the original cost by cost.
        removed: Number of removed units by kind; empty: none removed, or an event of an earlier version.
        there: Number of units right before, for kinds of width.
        kept: Choice among the trials right after the surgery (unchanged, recalibrated or reconstructed), with the
            output divergence of each on held-out samples; empty: no trials.
    """

    by: str
    target: str
    epoch: int
    step: int = 0
    units: Items[str] = ()
    params: int = 0
    macs: int = 0
    seconds: float | None = None
    taken: dict[str, int | float] = {}
    removed: dict[str, int] = {}
    there: dict[str, int] = {}
    kept: str = ""

    @model_serializer(mode="wrap")
    def _as_it_was(self, rest: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out empty fields unknown to earlier versions."""
        unsaid = {name for name in ("removed", "there", "kept") if not getattr(self, name)}
        return {name: value for name, value in rest(self).items() if name not in unsaid}

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready primitives."""
        return self.model_dump(mode="json")

    @property
    def summary(self) -> str:
        """Removed units in short.

        >>> SurgeryEvent(by="DepthPrune.0", target="", epoch=1, removed={"block": 3, "mlp": 1}).summary
        'depth: 3 blocks, 1 mlp removed'
        >>> SurgeryEvent(by="WidthPrune.0", target="", epoch=1, removed={"neuron": 8}, there={"neuron": 32}).summary
        'width: 25% of neurons removed'
        """
        parts: dict[str, list[str]] = {}
        for kind, count in self.removed.items():
            total = self.there.get(kind)
            share = f"{100 * count / total:.3g}% of {plural(kind)}" if total else ""
            what = share or f"{count} {kind}{'' if count == 1 else 's'}"
            parts.setdefault(TRAITS[kind].dimension if kind in TRAITS else "other", []).append(what)
        if not parts:
            return f"{len(self.units)} units removed"
        return "; ".join(f"{dimension}: {', '.join(counts)} removed" for dimension, counts in parts.items())


class ScheduleStart(_Record):
    """State of a callback at the start of its schedule.

    Attributes:
        events: Number of the callback's surgeries in earlier fits.
        units: Number of units by kind.
        asked: Arguments that decide the surgeries and their times.
    """

    events: int = 0
    units: dict[str, int] = {}
    asked: dict[str, Any] = {}


class QualityStep(_Record):
    """Step of pruning until a validation metric falls.

    Attributes:
        epoch: Epoch with the step at its start.
        asked: Requested removal after the step, all steps together: shares by cost, or units by kind.
        left: Remaining shares of the costs after the step, relative to the state before the first step; empty for steps
            in units.
        params: Parameters of the network afterwards.
        macs: Per calibration sample, afterwards; 0: not counted.
        after_surgery: Value of the metric right after the surgery, before any training; None: NaN.
        recovered: Value at the judgement of the step; None: not judged yet, or NaN.
        kept: Whether the step was kept; None: not judged yet.
    """

    epoch: int
    asked: dict[str, int | float] = {}
    left: dict[str, float] = {}
    params: int = 0
    macs: int = 0
    after_surgery: float | None = None
    recovered: float | None = None
    kept: bool | None = None


class QualityTrail(_Record):
    """All steps of a callback that prunes until a validation metric falls.

    Attributes:
        target: Path of the network.
        monitor: Name of the metric.
        dense: Value of the metric before the first step.
        worst: Worst allowed value.
        steps: Steps in order; the last may be under way.
        ended: Reason why no further step comes; empty: a step may come.
    """

    target: str
    monitor: str
    dense: float
    worst: float
    steps: Items[QualityStep] = ()
    ended: str = ""

    def with_last(self, **changed: Any) -> QualityTrail:
        """Return the trail with changed values of the last step.

        Args:
            changed: Values by the names of attributes of `QualityStep`.
        """
        *before, last = self.steps
        return self.model_copy(update={"steps": (*before, last.model_copy(update=changed))})


class TeacherFile(_Record):
    """Place of a network's saved dense teacher: name, folder and hash of the file."""

    file: str
    folder: str
    sha256: str


class LedgerRecord(_Record):
    """Full content of a ledger in a checkpoint.

    Attributes:
        run: Identifier of the fit, shared by all resumed fits; empty: unknown.
        plans: All edits of each network so far, by path of the network in the LightningModule.
        events: Surgeries in order.
        begun: Starts of schedules, by callback.
        quality: Steps of callbacks that prune until a validation metric falls, by callback.
        teachers: Saved teachers, by path of the network.
        adapters: Adapters injected on each network after all edits, by path of the network.
        places: Places in optimizers of the parameters frozen by adapters, by path of the network.
        use: Attributes written by each network's forward on its modules, by path of the network: see `use_of`.
        optimizers: Parameters of each group, in order; None: unknown.
        random_states: Random states of all ranks; None: unknown.
    """

    run: str = ""
    plans: dict[str, Plan] = {}
    events: Items[SurgeryEvent] = ()
    begun: dict[str, ScheduleStart] = {}
    quality: dict[str, QualityTrail] = {}
    teachers: dict[str, TeacherFile] = {}
    adapters: dict[str, Adapters] = {}
    places: dict[str, GroupPositions] = {}
    use: dict[str, Use] = {}
    optimizers: GroupNames | None = None
    random_states: list[dict[str, Any]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the content for a file: primitives and tensors."""
        return {
            "schema": SCHEMA,
            **({"run": self.run} if self.run else {}),
            "plans": {target: plan.to_dict() for target, plan in self.plans.items()},
            "adapters": {target: adapters.to_dict() for target, adapters in self.adapters.items()},
            "random_states": self.random_states,
            **({"use": self.use} if any(self.use.values()) else {}),
            **self.model_dump(mode="json", exclude={*WRITTEN_APART, *(() if self.quality else ("quality",))}),
        }

    @classmethod
    def from_dict(cls, data: Any, path: Path | None = None) -> LedgerRecord:
        """Validate the result of `to_dict`.

        Args:
            data: Entry of the checkpoint under `KEY`.
            path: Path of the checkpoint for messages, if known.

        Raises:
            ValueError: If the ledger or a plan in the ledger has another schema, or an entry is invalid.
        """
        schema = data.get("schema") if isinstance(data, Mapping) else None
        if schema != SCHEMA:
            raise ValueError(
                f"Expected a checkpoint with a ledger of schema {SCHEMA}, but {f'{path} has' if path else 'got'} "
                f"{in_short(schema)}. It was saved by another version of prunerecover; install that version or newer."
            )
        held = {name: data.get(name, {}) for name in ("plans", "adapters")}
        odd = [name for name, value in held.items() if not isinstance(value, Mapping)]
        if odd:
            raise ValueError(
                f"Expected {odd[0]} by path of their network in a ledger, but got {type(held[odd[0]]).__name__}. Was "
                "the checkpoint edited?"
            )
        plans = {target: Plan.from_dict(plan) for target, plan in held["plans"].items()}
        adapters = {target: Adapters.from_dict(found) for target, found in held["adapters"].items()}
        held = {**data, "plans": plans, "adapters": adapters}
        return validated(cls, held, "a complete ledger", "Was the checkpoint edited?")
