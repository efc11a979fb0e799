"""Sets of removable blocks of a language model, as data: a plan each, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from prunerecover.display.summary import Summarised, Summary
from prunerecover.files.atomic import write_text
from prunerecover.files.in_short import in_short, validated
from prunerecover.files.json_file import read_json
from prunerecover.plan.edits import Fold, Refit
from prunerecover.plan.plan import Plan
from prunerecover.plan.records import Items, Record
from prunerecover.plan.removed_units import leave_nothing
from prunerecover.plan.units import number_of_block

SCHEMA = "prunerecover.plan_set/1"


def check_routable(name: str, plan: Plan) -> None:
    """Raise ValueError unless a plan removes whole blocks only, without changes to shared weights."""
    fitted = [edit for edit in plan.edits if isinstance(edit, Fold | Refit)]
    changed = [edit.into if isinstance(edit, Fold) else edit.unit for edit in fitted]
    if changed:
        raise ValueError(
            f"Expected plans that leave the shared weights as they are, but '{name}' changes '{changed[0]}'. Plan it "
            "with replace='zero'."
        )
    if plan.needed_tensors or not leave_nothing(plan.edits) or set(plan.removed) - {"block"}:
        raise ValueError(
            f"Expected plans that remove whole blocks, but '{name}' has other edits ("
            f"{', '.join(sorted({edit.op for edit in plan.edits}))} of {', '.join(plan.removed)}). Use "
            "apply_plan for such a plan."
        )
    odd = [block for block in plan.removed.get("block", ()) if number_of_block(block) is None]
    if odd:
        raise ValueError(
            f"Expected blocks with numbers, but '{name}' removes {odd[0]}. Was it edited by hand? Plan anew."
        )


class PlanSet(Summarised, Record):
    """Several plans over shared weights: the routes of a router.

    Plans with layers fitted anew before removed blocks are refused: such a layer is shared with the other routes, and
    training data of routers cover blocks alone.

    Attributes:
        names: Names of the plans, without duplicates.
        plans: Plans, each to remove whole blocks of the same dense model, or nothing.
    """

    schema_: str = Field(default=SCHEMA, validation_alias="schema", serialization_alias="schema")
    names: Items[str]
    plans: Items[Plan]

    @field_validator("plans", mode="before")
    @classmethod
    def _read_plans(cls, plans: Any) -> Any:
        if not isinstance(plans, list | tuple):
            return plans
        return tuple(Plan.from_dict(plan) if isinstance(plan, Mapping) else plan for plan in plans)

    @model_validator(mode="after")
    def _fit_together(self) -> PlanSet:
        if not all(name.strip() for name in self.names):
            raise ValueError(f"Expected a name for each plan, but one of {list(self.names)} is empty.")
        if not self.plans or len(self.names) != len(self.plans) or len(set(self.names)) != len(self.names):
            raise ValueError(
                f"Expected one plan or more, each with a name of its own, but got {len(self.plans)} plans and the "
                f"names {list(self.names)}."
            )
        if len({plan.source.tensors for plan in self.plans if plan.edits}) > 1:
            raise ValueError("Expected plans for one model, but they start from different ones. Plan them anew.")
        for name, plan in zip(self.names, self.plans, strict=True):
            check_routable(name, plan)
        return self

    def summary(self) -> Summary:
        """Return the removed blocks of each plan."""
        pairs = zip(self.names, self.blocks, strict=True)
        rows = [(name, len(gone), ", ".join(map(str, sorted(gone)))) for name, gone in pairs]
        return Summary.of_list(f"{len(self.names)} sets of blocks", ("set", "blocks", "which"), rows, tuple)

    @property
    def blocks(self) -> tuple[frozenset[int], ...]:
        """Numbers of the removed blocks of each plan, in the dense model."""
        removed = (plan.removed.get("block", ()) for plan in self.plans)
        return tuple(frozenset(int(name.rpartition(".")[2]) for name in names) for names in removed)

    @property
    def shared_prefix(self) -> int:
        """Number of first blocks kept by every plan: all numbers below the first removed block; 0 without removals.

        >>> PlanSet(names=("all",), plans=(Plan(),)).shared_prefix
        0
        """
        return min((number for gone in self.blocks for number in gone), default=0)

    def number(self, name: str) -> int:
        """Return the number of a plan.

        Raises:
            ValueError: If there is no plan with this name.
        """
        if name not in self.names:
            raise ValueError(f"Expected one of the sets {', '.join(self.names)}, but got '{name}'.")
        return self.names.index(name)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready primitives."""
        plans = [plan.to_dict() for plan in self.plans]
        return {"schema": self.schema_, "names": list(self.names), "plans": plans}

    @classmethod
    def from_dict(cls, data: Any) -> PlanSet:
        """Validate primitives read from JSON.

        Raises:
            ValueError: If the data is no set of plans, or of a newer schema.
        """
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, Mapping) else type(data).__name__
            raise ValueError(
                f'Expected a set of plans ("schema": "{SCHEMA}"), but got {in_short(found)!r}. Is it such a file, and '
                "of this version?"
            )
        return validated(cls, dict(data), "a valid set of plans", "Was it edited? Plan anew, or copy it again.")

    def save(self, path: str | Path) -> Path:
        """Write a JSON file, whole or not at all; return the path."""
        write_text(Path(path), json.dumps(self.to_dict(), indent=2) + "\n")
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> PlanSet:
        """Read a file of `save`.

        Raises:
            FileNotFoundError: If there is no file.
            ValueError: If the file is no set of plans.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"Expected a file with a set of plans at {path}, but there is none.")
        return cls.from_dict(read_json(Path(path), "a set of plans"))
