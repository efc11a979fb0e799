"""The Plan: removed units and replacements, as data to read, compare, compose and replay.

On disk a plan is a JSON file; tensors of edits (fitted slopes, affine maps) lie in a safetensors file beside the JSON
file, with the sha256 in the JSON file. No content of either file is executed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from prunerecover.display.summary import Summarised, Summary
from prunerecover.files.in_short import in_short, validated
from prunerecover.files.plan_file import SAVED, read_data, read_tensors, write_plan
from prunerecover.model.checks import warn_unless_finite
from prunerecover.plan.edits import FITTED, OPS, Edit
from prunerecover.plan.evidence import joined
from prunerecover.plan.kept_groups import KeptGroup, kept_groups
from prunerecover.plan.records import Items, MadeBy, Record, Result, Source
from prunerecover.plan.removed_units import first_units, names_after, removed_units
from prunerecover.version import __version__

SCHEMA = "prunerecover.plan/1"


class Plan(Summarised, Record):
    """Ordered list of edits to a model; `Plan()` is the identity.

    >>> Plan() + Plan() == Plan()
    True
    """

    schema_: str = Field(default=SCHEMA, validation_alias="schema", serialization_alias="schema")
    source: Source = Source()
    result: Result = Result()
    made_by: MadeBy = MadeBy()
    edits: Items[Edit] = ()
    evidence: dict[str, Any] = {}
    sidecar: dict[str, str] | None = None
    _tensors: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Fitted tensors, by the keys in the edits."""
        return self._tensors

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Plan:
        """Return the same plan with the given fitted tensors."""
        plan = self.model_copy()
        plan._tensors = dict(tensors)
        return plan

    @property
    def needed_tensors(self) -> tuple[str, ...]:
        """Keys of all tensors in the edits."""
        return tuple(key for edit in self.edits if isinstance(edit, FITTED) for key in edit.tensors)

    @property
    def removed(self) -> dict[str, tuple[str, ...]]:
        """Names of the removed units by kind, in order of removal; channels, heads, ... are `group[number]`.

        Names and numbers are from the model at the start of the plan, although edits count in the model just before
        them: here, the second edit removes the first of the two remaining heads.

        >>> from prunerecover.plan.edits import Narrow
        >>> edits = [Narrow(unit="attn", kind="head", of=n, keep=k, group=()) for n, k in ((3, (1, 2)), (2, (1,)))]
        >>> Plan(edits=edits).removed
        {'head': ('attn[0]', 'attn[1]')}
        """
        units: dict[str, list[str]] = {}
        for unit in removed_units(self.edits):
            units.setdefault(unit.kind, []).append(unit.name)
        return {kind: tuple(names) for kind, names in units.items()}

    @property
    def kept_groups(self) -> tuple[KeptGroup, ...]:
        """Numbers of kept channels, heads, neurons or experts of every group; see `kept_groups`."""
        return kept_groups(self.edits, self.evidence)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready primitives, without the tensors."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_dict(cls, data: Any, tensors: Mapping[str, Tensor] | None = None) -> Plan:
        """Validate primitives read from JSON.

        Args:
            data: Primitives of a plan.
            tensors: Fitted tensors by key.

        Raises:
            ValueError: If the data is no plan, comes from a newer schema, or has an unknown operation.
        """
        if not isinstance(data, Mapping) or not str(data.get("schema", "")).startswith("prunerecover.plan/"):
            raise ValueError(f'Expected a plan ("schema": "{SCHEMA}"), but got something else. Is it a plan file?')
        if data["schema"] != SCHEMA:
            raise ValueError(
                f"Expected a plan of schema {SCHEMA}, but got {in_short(data['schema'])}. "
                f"It was made by prunerecover {_version_of(data)}; install that version or newer to read it."
            )
        _check_ops(data)
        held = {key: data[key] for key in data if key != SAVED}
        plan = validated(cls, held, "a valid plan", "Was it edited? Plan anew, or copy it again.")
        return plan.with_tensors(tensors or {})

    def save(self, path: str | Path) -> Path:
        """Write the JSON file and a file with the fitted tensors; return the path of the JSON file.

        A process killed meanwhile leaves the plan from before, or the new plan, intact. `plan.json` gets
        `plan.safetensors`; any other name is kept in full: `plan_0.3` gets `plan_0.3.safetensors`.

        Args:
            path: Path of the JSON file.

        Raises:
            OSError: If the folder is full or read-only.
        """
        path = Path(path)
        warn_unless_finite(self._tensors, path)
        write_plan(path, self.to_dict(), self._tensors)
        return path

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan and the sidecar.

        A missing sidecar is no error here: checkpoints replay structure without tensors. `apply_plan` refuses such a
        plan.

        Args:
            path: Path of the JSON file.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is not a plan, or the sidecar is from another plan.
        """
        path = Path(path)
        plan = cls.from_dict(read_data(path))
        tensors = read_tensors(path, plan.sidecar)
        warn_unless_finite(tensors, path)
        return plan.with_tensors(tensors)

    def __eq__(self, other: object) -> bool:
        """Whether both plans have equal data and equal tensors; the sidecar on disk does not count."""
        if not isinstance(other, Plan):
            return NotImplemented
        if self.model_copy(update={"sidecar": None}).to_dict() != other.model_copy(update={"sidecar": None}).to_dict():
            return False
        mine, theirs = self._tensors, other._tensors
        return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)

    __hash__ = None  # type: ignore[assignment]

    def first(self, count: int) -> Plan:
        """Return the plan with only the first `count` removed units: a single search gives every depth.

        Layers fitted anew before removed blocks are left out, as they were fitted for all removals. Maps folded for
        runs of blocks stay if the whole run is removed. Plan anew to have what is left fitted, too.

        Args:
            count: Number of units to remove; 0 gives the empty plan.

        Raises:
            TypeError: If `count` is no whole number.
            ValueError: If there are fewer units, or the replacements were fitted for all units together.
        """
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"Expected a whole number of units, but got {count!r}.")
        if count == 0:
            return Plan()
        if count == len(removed_units(self.edits)):
            return self
        found = first_units(self.edits, self.evidence, count)
        found["edits"], tensors = _renumbered(found["edits"], self._tensors)
        made_by = self.made_by.model_copy(update={"arguments": {**self.made_by.arguments, "first": count}})
        return self.model_copy(update={**found, "made_by": made_by, "sidecar": None}).with_tensors(tensors)

    def plot(self, path: str | Path | None = None, **how: Any) -> Any:
        """Draw the removed units; write a PNG if `path` is given. Returns a matplotlib Figure.

        Args:
            path: Path of the PNG.
            how: Arguments `units` and `importance` of `plot_plan`: all units of the dense model complete the picture.
        """
        from prunerecover.display.style import save_figure
        from prunerecover.plan.figure import plot_plan

        figure = plot_plan(self.edits, self.evidence, **how)
        if path is not None:
            save_figure(figure, path)
        return figure

    def summary(self) -> Summary:
        """Return the removed units, the requested and actual share, and the divergence of the output."""
        from prunerecover.plan.summary import summarised

        return summarised(self)

    def __add__(self, other: Plan) -> Plan:
        """Compose: first self, then other.

        The edits of `other` go on using names of the model after self: channel 3 is the fourth channel kept by self.
        `removed`, figures and reports translate to the model before self.

        Raises:
            ValueError: If `other` was made for a different model than the result of self.
        """
        if not self.edits:
            return other
        if not other.edits:
            return self
        if other.source.tensors != self.result.tensors:
            raise ValueError(
                f"Expected the second plan to start from the model the first one leaves ({self.result.tensors[:12]}), "
                f"but it starts from {other.source.tensors[:12]}. Make it on the model the first plan was applied to."
            )
        renamed, tensors = _shift(other, len(self.edits))
        evidence = joined(self.evidence, other.evidence, names_after(self.edits).dense_name)
        update = {"edits": self.edits + renamed, "result": other.result, "sidecar": None, "evidence": evidence}
        return self.model_copy(update=update).with_tensors({**self._tensors, **tensors})


def check_plan(plan: object) -> None:
    """Raise TypeError if the object is no plan."""
    if not isinstance(plan, Plan):
        raise TypeError(
            f"Expected a Plan, but got {type(plan).__name__}. Pass what plan_depth or plan_width returned, or "
            "Plan.load(path)."
        )


def _shift(plan: Plan, offset: int) -> tuple[tuple[Edit, ...], dict[str, Tensor]]:
    """Rename tensor keys `eN.x` to `e(N+offset).x` so that keys of two plans stay distinct."""

    def new_key(key: str) -> str:
        number, _, name = key.partition(".")
        if re.fullmatch("e[0-9]{1,9}", number) is None:
            raise ValueError(
                f"Expected keys of fitted tensors like 'e0.{name or 'bias'}', but got '{key}'. Was the plan edited?"
            )
        return f"e{int(number[1:]) + offset}.{name}"

    edits = tuple(
        edit.model_copy(update={"tensors": tuple(map(new_key, edit.tensors))}) if isinstance(edit, FITTED) else edit
        for edit in plan.edits
    )
    return edits, {new_key(key): value for key, value in plan.tensors.items()}


def _renumbered(edits: tuple[Edit, ...], tensors: Mapping[str, Tensor]) -> tuple[tuple[Edit, ...], dict[str, Tensor]]:
    """Rename tensor keys `eN.x` by the places of their edits, and drop tensors without an edit."""
    found, kept = list[Edit](), dict[str, Tensor]()
    for number, edit in enumerate(edits):
        if isinstance(edit, FITTED):
            keys = {key: f"e{number}.{key.partition('.')[2]}" for key in edit.tensors}
            kept |= {new: tensors[old] for old, new in keys.items() if old in tensors}
            edit = edit.model_copy(update={"tensors": tuple(keys.values())})
        found.append(edit)
    return tuple(found), kept


def _check_ops(data: Mapping[str, Any]) -> None:
    edits = data.get("edits")
    for edit in edits if isinstance(edits, list | tuple) else ():
        op = edit.get("op") if isinstance(edit, Mapping) else None
        if op is not None and op not in OPS:
            raise ValueError(
                f"Expected one of the operations {', '.join(OPS)} of prunerecover {__version__}, but the plan (made by "
                f"{_version_of(data)}) has '{in_short(op)}'. Install the version that made it, or a newer one."
            )


def _version_of(data: Mapping[str, Any]) -> str:
    made_by = data.get("made_by")
    version = made_by.get("version") if isinstance(made_by, Mapping) else None
    return in_short(version or "of unknown version")
