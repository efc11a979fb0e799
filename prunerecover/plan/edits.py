"""Edits, the operations of a Plan: plain data, validated on reading, applied by `apply_edits`.

Edits are sequential: names in an edit are valid just before the edit.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_serializer,
    model_validator,
)

from prunerecover.plan.edit_parts import FITTED_STAND_INS, EditRecord, StandIns, split_call
from prunerecover.plan.groups import Setting, Slice
from prunerecover.plan.kinds import WidthKind
from prunerecover.plan.records import Items

LEAVES = {"activation": ("identity", "slope_bias", "affine"), "branch": ("identity", "affine", "constant")}

PARAMETERS = {"identity": (), "slope_bias": ("slope", "bias"), "affine": ("weight", "bias"), "constant": ("bias",)}
MOST_UNITS = 2**20  # most units of a group; lists of removed units are made before a model is at hand


class Remove(EditRecord):
    """Removal of a unit without a replacement: a branch adds zero, a block leaves the container."""

    op: Literal["remove"] = "remove"
    unit: str
    kind: Literal["block", "attention", "mlp"]
    leaves: Literal["zero"] = "zero"


class Replace(EditRecord):
    """Removal of a unit with a cheap replacement.

    Attributes:
        leaves: Kind of the replacement: "identity" (the input), "slope_bias" (activations), "affine" or "constant".
        tensors: Keys of the fitted tensors in the sidecar of the plan; the part after the last dot names the parameter.
    """

    op: Literal["replace"] = "replace"
    unit: str
    kind: Literal["attention", "mlp", "activation"]
    leaves: Literal["identity", "slope_bias", "affine", "constant"]
    tensors: Items[str] = ()

    @model_validator(mode="after")
    def _fits_the_kind(self) -> Replace:
        allowed = LEAVES["activation" if self.kind == "activation" else "branch"]
        if self.leaves not in allowed:
            raise ValueError(
                f"Expected a removed {self.kind} to leave one of {', '.join(allowed)}, but got {self.leaves}."
            )
        return self


class Bypass(EditRecord):
    """Removal of a unit with the modules around that serve no other unit; replacements pass the input on.

    Attributes:
        modules: Replacement of each module, by path.
        tensors: Keys of the fitted tensors of a fitted replacement.
    """

    op: Literal["bypass"] = "bypass"
    unit: str
    kind: Literal["block", "attention", "mlp", "activation", "layer"]
    modules: StandIns
    tensors: Items[str] = ()

    @property
    def leaves(self) -> str:
        """Kind of the unit's replacement, as a single word."""
        held = {"constant" if one.leaves == "constants" else one.leaves for one in self.modules.values()}
        return next((leaves for leaves in (*FITTED_STAND_INS, "pool", "zero", "zeros") if leaves in held), "identity")

    @model_validator(mode="after")
    def _has_one_to_fit(self) -> Bypass:
        fitted = sum(stand_in.leaves in FITTED_STAND_INS for stand_in in self.modules.values())
        if fitted > 1 or (self.tensors and not fitted):
            raise ValueError(
                f"Expected tensors of one fitted stand-in at most, but got {len(self.tensors)} for {fitted} in the "
                f"place of '{self.unit}'. Was the plan edited?"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_no_tensors(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        return found if self.tensors else {name: value for name, value in found.items() if name != "tensors"}


class Patch(EditRecord):
    """Neutral replacements in sums, products and concatenations of bypassed units, and removal of emptied modules.

    Attributes:
        modules: Replacement of each module, by path.
    """

    op: Literal["patch"] = "patch"
    modules: StandIns


class Merge(EditRecord):
    """Merge of linears with no nonlinearity between them; the affine part of a norm and a LayerScale fold in.

    Attributes:
        into: Path of the module to hold the merged linear map.
        from_: Paths of the merged modules; all but `into` become identities.
        norm: Path of the norm with an affine part to fold in, or None.
        scale: Path of the LayerScale to fold in, or None.
    """

    op: Literal["merge"] = "merge"
    into: str
    from_: Items[str] = Field(validation_alias="from", serialization_alias="from")
    norm: str | None = None
    scale: str | None = None


class Fold(EditRecord):
    """Fold of a map into the linear before a run of blocks, as a replacement: W becomes T W, b becomes T b + t.

    Attributes:
        unit: Last block of the run, removed later in the plan.
        into: Path of the linear.
        tensors: Keys of T, "weight", and, for a linear with a bias, of t, "bias".
    """

    op: Literal["fold"] = "fold"
    unit: str
    into: str
    tensors: Items[str] = ()


class Refit(EditRecord):
    """New values for parameters of a module, of the same shapes.

    Attributes:
        unit: Path of the module: a linear, a convolution, an attention.
        tensors: Keys of the values; the part after the last dot names a parameter of the module itself.
    """

    op: Literal["refit"] = "refit"
    unit: str
    tensors: Items[str] = Field(min_length=1)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in the order of `tensors`."""
        return tuple(key.rpartition(".")[2] for key in self.tensors)

    @model_validator(mode="after")
    def _names_each_parameter_once(self) -> Refit:
        if len(set(self.names)) < len(self.names):
            raise ValueError(
                f"Expected one tensor for each parameter of '{self.unit}', but got {', '.join(self.tensors)}. Was the "
                "plan edited?"
            )
        return self


class Config(EditRecord):
    """New values for entries of a transformers config, for a pruned model that stays standard."""

    op: Literal["config"] = "config"
    set: dict[str, Any]


class Narrow(EditRecord):
    """Removal of some units of a group (channels, heads, neurons, experts), with all entries in tensors.

    Attributes:
        unit: Name of the group.
        of: Number of units before.
        keep: Numbers of the kept units, ascending.
        group: Tensors with entries to remove.
        settings: Attributes of modules to adapt to the number of units.
        tensors: Keys of refitted values of weights behind the group (see `compensation`); the part after the first dot
            is the path of the weight.
        serves: Path of a layer bypassed next: the edit equalises widths around the layer, and the removed units were
            not chosen. Empty for chosen units.
    """

    op: Literal["narrow"] = "narrow"
    unit: str
    kind: WidthKind
    of: int = Field(le=MOST_UNITS)
    keep: Items[int]
    group: Items[Slice]
    settings: Items[Setting] = ()
    tensors: Items[str] = ()
    serves: str = ""

    @property
    def gone(self) -> tuple[int, ...]:
        """Numbers of the removed units, ascending."""
        stay = set(self.keep)
        return tuple(number for number in range(self.of) if number not in stay)

    def check(self) -> None:
        """Raise ValueError if `keep` is invalid: `model_copy(update=...)` does not validate."""
        ascending = list(self.keep) == sorted(set(self.keep))
        if not self.keep or not ascending or self.keep[0] < 0 or self.keep[-1] >= self.of:
            raise ValueError(
                f"Expected at least one kept {self.kind} of '{self.unit}', as ascending numbers from 0 to "
                f"{self.of - 1}, but got {list(self.keep)}."
            )

    @model_validator(mode="after")
    def _keeps_some_of_its_units(self) -> Narrow:
        self.check()
        if self.kind == "head_dim" and self.tensors:
            raise ValueError(
                f"Expected no refitted tensors for dimensions of heads of '{self.unit}', but got "
                f"{', '.join(self.tensors)}. Refit the weight that reads the heads."
            )
        return self

    @model_serializer(mode="wrap")
    def _without_empty_serves(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        return found if self.serves else {name: value for name, value in found.items() if name != "serves"}

    @field_serializer("group", "settings")
    def _without_defaults(self, parts: tuple[Slice | Setting, ...]) -> list[dict[str, Any]]:
        return [part.model_dump(mode="json", exclude_defaults=True) for part in parts]


class Rewrite(EditRecord):
    """Rewrite of a shortcut without parameters as a `ChannelMap`: a weight to narrow as in a convolution.

    The shortcut keeps every `stride`-th position of a map and places the channels among zeros (option A of ResNets).

    Attributes:
        unit: Path of the module.
        first: Output channel of the first input channel.
    """

    op: Literal["rewrite"] = "rewrite"
    unit: str
    in_channels: int
    out_channels: int
    stride: int = 1
    first: int = 0

    @model_validator(mode="after")
    def _has_room(self) -> Rewrite:
        if min(self.in_channels, self.stride) < 1 or not 0 <= self.first <= self.out_channels - self.in_channels:
            raise ValueError(
                f"Expected '{self.unit}' to place at least 1 channel at stride 1 or more among its output's, but got "
                f"{self.in_channels} from channel {self.first} of {self.out_channels} on at stride {self.stride}."
            )
        return self


class FreeHeads(EditRecord):
    """Conversion of an attention with a head size tied to the number of heads: heads can be removed, outputs stay.

    Covers PyTorch's `nn.MultiheadAttention`, and torchvision's attentions of Swin: see `prunerecover.model.narrow`.

    Attributes:
        unit: Path of the module; the object stays the same.
    """

    op: Literal["free_heads"] = "free_heads"
    unit: str


class Reroute(EditRecord):
    """Forward of a module without some calls: each passes the first tensor on.

    Submodules and parameters without a reader afterwards are removed, too.

    Attributes:
        unit: Path of the module; the empty path is the network itself.
        calls: Names of calls in the forward before the edit, such as "relu:1", or of operands, such as "add:0[1]": see
            `prunerecover.surgery.forward.calls`.
    """

    op: Literal["reroute"] = "reroute"
    unit: str
    calls: Items[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_calls(self) -> Reroute:
        for call in self.calls:
            split_call(call)
        return self


_AnyEdit = Remove | Replace | Merge | Config | Narrow | Rewrite | FreeHeads | Bypass | Patch | Reroute | Fold | Refit
Edit = Annotated[_AnyEdit, Field(discriminator="op")]
OPS = tuple(edit.model_fields["op"].default for edit in get_args(_AnyEdit))
FITTED = (Replace, Narrow, Fold, Bypass, Refit)  # edits with tensors
