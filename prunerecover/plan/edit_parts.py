"""Parts of edits: the base class, names of calls, and replacements of a module."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, model_validator

from prunerecover.plan.records import LONGEST_NAME, Items

MOST_RETURNED = 64  # most values returned by a module
MOST_CHANNELS = 2**14  # most channels of an affine map, with the square as entries

Bare = Literal["identity", "copy", "zero", "zeros", "one", "empty", "pool"]
Fitted = Literal["affine", "slope_bias", "constant", "constants"]
FITTED_STAND_INS = get_args(Fitted)


class EditRecord(BaseModel):
    """Base of edits: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, str_max_length=LONGEST_NAME)


def split_call(name: str) -> tuple[str, int | None]:
    """Split the name of a call in the forward of a module, or of an operand, into call and number of the operand.

    Raises:
        ValueError: If the name has another form.

    >>> split_call("relu:1"), split_call("add:0[1]")
    (('relu:1', None), ('add:0', 1))
    """
    found = re.fullmatch(r"([^:\[\]]+:[0-9]{1,9})(?:\[([0-9]{1,9})\])?", name)
    if found is None:
        raise ValueError(
            f"Expected the name of a call such as 'relu:1', or of an operand such as 'add:0[1]', but got '{name}'. "
            "Count from 0 in the order of execution."
        )
    return found[1], None if found[2] is None else int(found[2])


class StandIn(BaseModel):
    """Replacement of a module, with outputs in the same form.

    Attributes:
        leaves: Kind of the replacement: "identity" (the input), "copy" (a copy of the input, for readers in place),
            "zero" (a scalar, for sums), "zeros" (in the shape of the input, for sums in place), "one" (for products),
            "empty" (no entries along a dimension, for concatenations), "pool" (averages, for a strided layer), or
            fitted: "affine" (a map of the channels), "slope_bias" (per channel), "constant" (a number per channel, for
            sums) or "constants" (in the shape of the input, for sums in place).
        returns: Number of returned values: 1 is a tensor, 0 a tuple with a single tensor.
        dim: Dimension: for "empty" the empty dimension, for fitted kinds the dimension of the channels, 1 or -1.
        channels: Number of channels of a fitted kind.
        window: Window of "pool": kernel size, stride and padding along each spatial dimension.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    leaves: Literal[
        "identity", "copy", "zero", "zeros", "one", "empty", "pool", "affine", "slope_bias", "constant", "constants"
    ] = "identity"
    returns: int = Field(default=1, ge=0, le=MOST_RETURNED)
    dim: int = 0
    channels: int = Field(default=0, ge=0, le=MOST_CHANNELS)
    window: Items[Items[int]] = ()

    @model_validator(mode="after")
    def _has_channels_to_fit(self) -> StandIn:
        if (self.leaves in FITTED_STAND_INS) != (self.channels > 0 and self.dim in (1, -1)):
            raise ValueError(
                "Expected what is fitted to have some channels along dimension 1 or -1, but got "
                f"{self.channels} along dimension {self.dim} for '{self.leaves}'. Was the plan edited?"
            )
        return self

    @model_validator(mode="after")
    def _has_a_window_to_pool(self) -> StandIn:
        if self.leaves == "pool":
            lengths = {len(sizes) for sizes in self.window}
            if len(self.window) != 3 or len(lengths) != 1 or not lengths <= {1, 2, 3}:
                raise ValueError(
                    "Expected the window of a pooling to be kernel size, stride and padding along each of 1 to 3 "
                    f"dimensions, but got {self.window}. Was the plan edited?"
                )
        return self


def _without_defaults(modules: dict[str, StandIn]) -> dict[str, Any]:
    return {path: stand_in.model_dump(mode="json", exclude_defaults=True) for path, stand_in in modules.items()}


StandIns = Annotated[dict[str, StandIn], PlainSerializer(_without_defaults)]
