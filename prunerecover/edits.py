"""The edits a Plan is made of: plain data, validated on reading, applied by `surgery`.

Edits are sequential: each names things as they are just before it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["block", "attention", "mlp", "activation", "layer", "channel", "head", "neuron", "expert"]


LEAVES = {"activation": ("identity", "slope_bias", "affine"), "branch": ("identity", "affine", "constant")}


class _Edit(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Remove(_Edit):
    """A unit goes and leaves nothing: a branch adds zero, a block is taken out of its container."""

    op: Literal["remove"] = "remove"
    unit: str
    kind: Literal["block", "attention", "mlp"]
    leaves: Literal["zero"] = "zero"


class Replace(_Edit):
    """A unit goes and leaves something cheap.

    Attributes:
        leaves: "identity" (the input is passed on), "slope_bias" (activations), "affine" or "constant".
        tensors: Keys of the fitted tensors in the plan's sidecar; the part after the last dot names the parameter.
    """

    op: Literal["replace"] = "replace"
    unit: str
    kind: Literal["attention", "mlp", "activation"]
    leaves: Literal["identity", "slope_bias", "affine", "constant"]
    tensors: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _fits_the_kind(self) -> Replace:
        allowed = LEAVES["activation" if self.kind == "activation" else "branch"]
        if self.leaves not in allowed:
            raise ValueError(
                f"Expected a removed {self.kind} to leave one of {', '.join(allowed)}, but got {self.leaves}."
            )
        return self


class Merge(_Edit):
    """Linears with nothing nonlinear between them become one; norm affine and LayerScale around them fold in.

    Attributes:
        into: Path of the module that becomes the single linear map.
        from_: Paths that it replaces; those other than `into` become identities.
        norm: Path of the norm whose affine part folds in, or None.
        scale: Path of the LayerScale that folds in, or None.
    """

    op: Literal["merge"] = "merge"
    into: str
    from_: tuple[str, ...] = Field(validation_alias="from", serialization_alias="from")
    norm: str | None = None
    scale: str | None = None


class Config(_Edit):
    """Entries of a transformers config that change so that the pruned model stays a standard one."""

    op: Literal["config"] = "config"
    set: dict[str, Any]


Edit = Annotated[Remove | Replace | Merge | Config, Field(discriminator="op")]
OPS = ("remove", "replace", "merge", "config")
