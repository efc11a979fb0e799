"""The edits a Plan is made of: plain data, validated on reading, applied by `apply_edits`.

Edits are sequential: each names things as they are just before it.
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
MOST_UNITS = 2**20  # of one group; lists of the units that go are made before a model is at hand


class Remove(EditRecord):
    """A unit goes and leaves nothing: a branch adds zero, a block is taken out of its container."""

    op: Literal["remove"] = "remove"
    unit: str
    kind: Literal["block", "attention", "mlp"]
    leaves: Literal["zero"] = "zero"


class Replace(EditRecord):
    """A unit goes and leaves something cheap.

    Attributes:
        leaves: "identity" (the input is passed on), "slope_bias" (activations), "affine" or "constant".
        tensors: Keys of the fitted tensors in the plan's sidecar; the part after the last dot names the parameter.
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
    """A unit goes, and so do the modules that serve it alone; stand-ins hand on what they get.

    Attributes:
        modules: What takes the place of each module, by path.
        tensors: Keys of the fitted tensors, if one of these is fitted.
    """

    op: Literal["bypass"] = "bypass"
    unit: str
    kind: Literal["block", "attention", "mlp", "activation", "layer"]
    modules: StandIns
    tensors: Items[str] = ()

    @property
    def leaves(self) -> str:
        """What stands in the unit's place, in one word."""
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
    """What bypassed units leave of sums, products and concatenations becomes neutral, and emptied modules go.

    Attributes:
        modules: What takes the place of each module, by path.
    """

    op: Literal["patch"] = "patch"
    modules: StandIns


class Merge(EditRecord):
    """Linears with nothing nonlinear between them become one; norm affine and LayerScale around them fold in.

    Attributes:
        into: Path of the module that becomes the single linear map.
        from_: Paths that it replaces; those other than `into` become identities.
        norm: Path of the norm whose affine part folds in, or None.
        scale: Path of the LayerScale that folds in, or None.
    """

    op: Literal["merge"] = "merge"
    into: str
    from_: Items[str] = Field(validation_alias="from", serialization_alias="from")
    norm: str | None = None
    scale: str | None = None


class Fold(EditRecord):
    """The linear before a run of blocks takes in a map that stands for them: W becomes T W, b becomes T b + t.

    Attributes:
        unit: The last block of the run, which goes later in the plan; `into` is the path of the linear.
        tensors: Keys of T, "weight", and of t, "bias", which only a linear with a bias has.
    """

    op: Literal["fold"] = "fold"
    unit: str
    into: str
    tensors: Items[str] = ()


class Refit(EditRecord):
    """Parameters of a module take other values, of the same shapes.

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
    """Entries of a transformers config that change so that the pruned model stays a standard one."""

    op: Literal["config"] = "config"
    set: dict[str, Any]


class Narrow(EditRecord):
    """Some units of a group go: channels, heads, neurons or experts, with their entries in all of its tensors.

    Attributes:
        unit: Name of the group.
        of: How many units there are before.
        keep: Numbers of those that stay, ascending.
        group: The tensors that lose entries.
        settings: Attributes of modules that follow the number of units.
        tensors: Keys of what weights that read the group take over (see `compensation`); the part after the first dot
            is the path of the weight.
        serves: Path of the layer that is bypassed next, whose widths become one by this; its sections are no units that
            were chosen themselves. Empty if they were.
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
        """Numbers of the units that go, ascending."""
        stay = set(self.keep)
        return tuple(number for number in range(self.of) if number not in stay)

    def check(self) -> None:
        """Raise ValueError if `keep` is not what it should be: `model_copy(update=...)` does not look."""
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
                f"Expected no tensors of what takes over from dimensions of heads of '{self.unit}', but got "
                f"{', '.join(self.tensors)}. Refit the weight that reads them."
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
    """A shortcut without parameters becomes a `ChannelMap`, whose weight can lose channels like a convolution's.

    The shortcut keeps every `stride`-th position of a map and places its channels among zeros (option A of ResNets).

    Attributes:
        unit: Path of the module.
        first: Channel of the output that the input's first one becomes.
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
    """An attention that sizes its heads by their number becomes one whose heads can go; it computes the same.

    PyTorch's `nn.MultiheadAttention`, and torchvision's attentions of Swin: see `prunerecover.model.narrow`.

    Attributes:
        unit: Path of the module, which stays the same object.
    """

    op: Literal["free_heads"] = "free_heads"
    unit: str


class Reroute(EditRecord):
    """A module's own forward goes without some of its calls, which hand their first tensor on.

    Submodules and parameters that nothing reads any more go with them.

    Attributes:
        unit: Path of the module; the empty one is the network itself.
        calls: Names of calls in its forward as it is before, such as "relu:1", or of operands, such as "add:0[1]": see
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
FITTED = (Replace, Narrow, Fold, Bypass, Refit)  # what may need tensors
