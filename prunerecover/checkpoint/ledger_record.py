"""The ledger in a checkpoint: what callbacks did to the networks of a LightningModule, as primitives and tensors.

It lies in the file under the key "prunerecover". Callbacks write it and go on from it (`callbacks.ledger`);
`load_pruned` takes its plans and adapters, without Lightning. Entries that earlier versions did not write have
defaults; entries that this version does not know are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer

from prunerecover.files.in_short import errors_in_short, in_short
from prunerecover.model.settings import Use
from prunerecover.plan.kinds import TRAITS, plural
from prunerecover.plan.plan import Plan
from prunerecover.plan.records import Items
from prunerecover.recovery.lora import Adapters

KEY = "prunerecover"
SCHEMA = "prunerecover.ledger/1"

GroupNames = list[list[list[str]]]  # by optimizer and group: names of parameters, "" for one of something else
GroupPositions = dict[str, list[int]]  # by name of a parameter: number of an optimizer and of a group in it


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class SurgeryEvent(_Record):
    """One surgery.

    Attributes:
        by: Which callback did it, such as "DepthPrune.0".
        target: Path of the network.
        epoch: At the start of which it came.
        step: How many optimizer steps came before it.
        units: What was removed, named as in the network right before it.
        params: Parameters of the network afterwards; 0 if nothing was removed.
        macs: Per calibration sample, afterwards; 0: not counted.
        seconds: That it took to decide; None if that was done elsewhere.
        taken: Of a budget that several surgeries share: units by kind, or by cost the share of what there was.
        removed: How many units of each kind went; empty: nothing did, or an earlier version wrote the event.
        there: How many units there were right before, for kinds of width.
        kept: Of what was tried right after it: as it is, recalibrated or reconstructed, with the output divergence of
            each on held-out samples; empty: nothing was tried.
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
        """Leave out what earlier versions did not say."""
        unsaid = {name for name in ("removed", "there", "kept") if not getattr(self, name)}
        return {name: value for name, value in rest(self).items() if name not in unsaid}

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready primitives."""
        return self.model_dump(mode="json")

    @property
    def summary(self) -> str:
        """What went, in short.

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
    """What a callback found when its schedule began.

    Attributes:
        events: How many surgeries of its own there had been, in fits before.
        units: How many units of each kind there were.
        asked: The arguments that decide which surgeries come when.
    """

    events: int = 0
    units: dict[str, int] = {}
    asked: dict[str, Any] = {}


class TeacherFile(_Record):
    """Where the dense teacher of a network was saved: name and folder of the file, and its hash."""

    file: str
    folder: str
    sha256: str


class LedgerRecord(_Record):
    """Everything that a checkpoint holds of a ledger.

    Attributes:
        run: Which fit it is of, with all that resume it; empty: the file does not say.
        plans: All edits so far of each network, by its path in the LightningModule.
        events: Surgeries in order.
        begun: By callback.
        teachers: By path of the network, once they were saved.
        adapters: What is injected on each network after all its edits, by the same paths.
        places: Where optimizers held what adapters froze, by path of the network.
        use: What the forward of each network has written on its modules, by path of the network: see `use_of`.
        optimizers: What each group held, in order; None: the file does not say.
        random_states: Of all ranks; None: the file does not say.
    """

    run: str = ""
    plans: dict[str, Plan] = {}
    events: Items[SurgeryEvent] = ()
    begun: dict[str, ScheduleStart] = {}
    teachers: dict[str, TeacherFile] = {}
    adapters: dict[str, Adapters] = {}
    places: dict[str, GroupPositions] = {}
    use: dict[str, Use] = {}
    optimizers: GroupNames | None = None
    random_states: list[dict[str, Any]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what goes into a file: primitives and tensors."""
        return {
            "schema": SCHEMA,
            **({"run": self.run} if self.run else {}),
            "plans": {target: plan.to_dict() for target, plan in self.plans.items()},
            "adapters": {target: adapters.to_dict() for target, adapters in self.adapters.items()},
            "random_states": self.random_states,
            **({"use": self.use} if any(self.use.values()) else {}),
            **self.model_dump(mode="json", exclude={"run", "plans", "adapters", "random_states", "use"}),
        }

    @classmethod
    def from_dict(cls, data: Any, path: Path | None = None) -> LedgerRecord:
        """Validate what `to_dict` returned.

        Args:
            data: What lies under `KEY`.
            path: Of the checkpoint, if it is known, for messages.

        Raises:
            ValueError: If it is of another schema, a plan in it is, or something in it is not what it should be.
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
        try:
            return cls.model_validate({**data, "plans": plans, "adapters": adapters})
        except ValidationError as error:
            raise ValueError(
                f"Expected a complete ledger, but {errors_in_short(error)}. Was the checkpoint edited?"
            ) from None
