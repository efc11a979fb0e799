"""Groups: dimensions of tensors that must stay equal, such as all channels in a residual sum.

A group has `size` units (channels, heads, neurons or experts). Each unit is removed alone, with the entries of the unit
in all tensors of the group. Groups are data: found by `discovery` and `experts`, read by scores, costs and solvers, and
narrowed by the `narrow` edit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from prunerecover.display.summary import Summarised, Summary
from prunerecover.plan.kinds import WidthKind, plural
from prunerecover.plan.records import LONGEST_NAME, Items
from prunerecover.plan.units import Site


class Slice(BaseModel):
    """Entries of a group in a tensor: along `dim`, unit `u` has `span` indices from `offset + u * span` on.

    Attributes:
        tensor: Path of the parameter or buffer.
        dim: Dimension of the units.
        offsets: Offset of each part of the tensor: three in a fused query-key-value weight, else usually a single
            offset.
        span: Indices per unit: the head dimension, or the positions per channel of a flattened map.
        makes: Whether the entries make the unit (weights into the unit, bias, normalisation), rather than read the
            unit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", str_max_length=LONGEST_NAME)

    tensor: str
    dim: int
    offsets: Items[int] = (0,)
    span: int = 1
    makes: bool = True

    def indices(self, units: Tensor) -> Tensor:
        """Return the indices along `dim` of `units`, a 1-D integer tensor, in ascending order.

        >>> Slice(tensor="qkv.weight", dim=0, offsets=(0, 4), span=2).indices(torch.tensor([1]))
        tensor([2, 3, 6, 7])
        """
        within = (units[:, None] * self.span + torch.arange(self.span)).flatten()
        return torch.cat([offset + within for offset in self.offsets]).sort().values


class Setting(BaseModel):
    """Attribute of a module to adapt to the number of units: a power of `per_unit` times the number.

    Attributes:
        module: Path of the module; with `config.` in front of the attribute, an entry of the config.
        attribute: Name of the attribute, such as `num_heads`.
        per_unit: Amount per unit.
        power: Power of the product: 1 for a whole number, -0.5 for the scale of attention logits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", str_max_length=LONGEST_NAME)

    module: str
    attribute: str
    per_unit: int = 1
    power: float = Field(default=1.0, ge=-2, le=2)

    def value(self, units: int) -> int | float:
        """Return the value of the attribute for a number of units.

        >>> Setting(module="attn", attribute="scale", power=-0.5).value(64)
        0.125
        """
        size = self.per_unit * units
        return size if self.power == 1 else float(size**self.power)


Place = tuple[str, Literal["input", "output"]]  # path of a module, and side of the tensor


@dataclass(frozen=True)
class Tap:
    """Place in the network to read the activations of the units of a group.

    Attributes:
        module: Path of the module.
        of: Tensor of the module: "output" or (first) "input"; "routing" for fused experts, read from the router's
            choice at the input of the module (without `dim`, `offset` and `span`).
        dim: Dimension of the units: 1 in maps `(N, C, H, W)`, -1 in tokens `(N, T, C)` and features `(N, C)`.
        offset: Offset of the first unit along `dim`.
        span: Entries per unit.
        samples: Dimension of the samples: 1 in tokens `(T, N, C)`.
        apart: Whether rows of a sample lie apart along this dimension, as in `(T * N, C)`; in `(N * T, C)` rows of a
            sample are adjacent.
    """

    module: str
    of: Literal["input", "output", "routing"] = "output"
    dim: int = 1
    offset: int = 0
    span: int = 1
    samples: int = 0
    apart: bool = False


@dataclass(frozen=True)
class Group(Site, Summarised):
    """Units to remove one by one, with all coupled entries.

    Attributes:
        name: Path of the first module that makes the units, with a suffix if the module makes several groups (`fc:64`,
            `fc.b`, `qkv:head_dim`); unique among the groups of a kind in a model.
        kind: Kind of the units.
        size: Number of units.
        slices: Tensors with entries of the units.
        taps: Places of the activations of the units, one per sum or concatenation behind the units.
        settings: Attributes to adapt to the number of units.
        at_least: Minimum number of kept units.
        multiple: Divisor of the number of kept units.
        strata: Number of equally long stretches of units with equally many kept units each: experts under a router that
            chooses group by group. A divisor of `multiple`.
        products: MACs per sample and unit in products without weights, such as scores and values of attention.
        scaled_by: Power of the number of units in a factor on outputs of units: -0.5 if attention divides the logits by
            the root of the head size, 0 if the scale is fixed.
        params: Parameters of all units together; 0 until counted by `find_sites`.
        macs: MACs of all units together on the example batch; 0 until counted by `find_sites`.
        block: Path of the block, see `Site`; empty until set by `find_sites`.
    """

    name: str
    kind: WidthKind
    size: int
    slices: tuple[Slice, ...]
    taps: tuple[Tap, ...] = ()
    settings: tuple[Setting, ...] = ()
    at_least: int = 1
    multiple: int = 1
    strata: int = 1
    products: int = 0
    scaled_by: float = 0.0
    params: int = field(default=0, compare=False)
    macs: int = field(default=0, compare=False)
    block: str = field(default="", compare=False)

    @property
    def touches(self) -> tuple[str, ...]:
        """Paths of the tensors with entries of the units."""
        return tuple(dict.fromkeys(part.tensor for part in self.slices))

    def summary(self) -> Summary:
        """Return the size of the group, and the tensors with entries of the units."""
        title = f"Group {self.name} of {self.size} {plural(self.kind)}"
        rows = [(s.tensor, s.dim, s.span, "makes" if s.makes else "reads") for s in self.slices]
        return Summary.of_list(title, ("tensor", "dim", "per unit", "the unit"), rows, tuple)
