"""Groups: dimensions of tensors that must stay equal, such as all channels that a residual sum adds up.

A group has `size` units (channels, heads, neurons or experts), which are removed alone; a unit's entries in all of the
group's tensors go together. Groups are data: found by `discovery` and `experts`, read by the scores, the costs and the
allocations, and narrowed by the `narrow` edit.
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
    """The entries of a group in one tensor: along `dim`, unit `u` has `span` indices from `offset + u * span` on.

    Attributes:
        tensor: Path of the parameter or buffer.
        dim: Along which the units lie.
        offsets: One per part of the tensor: a fused query-key-value weight has three, most others one.
        span: Indices per unit: the head dimension, or the positions that a flattened map has per channel.
        makes: Whether the entries make the unit (the weights that write it, their bias, its normalisation), rather than
            read it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", str_max_length=LONGEST_NAME)

    tensor: str
    dim: int
    offsets: Items[int] = (0,)
    span: int = 1
    makes: bool = True

    def indices(self, units: Tensor) -> Tensor:
        """Return the indices along `dim` that belong to `units`, a 1-D integer tensor, in ascending order.

        >>> Slice(tensor="qkv.weight", dim=0, offsets=(0, 4), span=2).indices(torch.tensor([1]))
        tensor([2, 3, 6, 7])
        """
        within = (units[:, None] * self.span + torch.arange(self.span)).flatten()
        return torch.cat([offset + within for offset in self.offsets]).sort().values


class Setting(BaseModel):
    """An attribute of a module that follows the number of units: `per_unit` times it, or a power of that.

    Attributes:
        module: Path of the module; with `config.` in front of the attribute, an entry of its config.
        attribute: Its name, such as `num_heads`.
        per_unit: What one unit adds.
        power: Of the product: 1 for a whole number, -0.5 for a scale by which attention divides its logits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", str_max_length=LONGEST_NAME)

    module: str
    attribute: str
    per_unit: int = 1
    power: float = Field(default=1.0, ge=-2, le=2)

    def value(self, units: int) -> int | float:
        """Return the attribute's value with so many units.

        >>> Setting(module="attn", attribute="scale", power=-0.5).value(64)
        0.125
        """
        size = self.per_unit * units
        return size if self.power == 1 else float(size**self.power)


Place = tuple[str, Literal["input", "output"]]  # path of a module, and which of its tensors


@dataclass(frozen=True)
class Tap:
    """Where the activations of a group's units are seen.

    Attributes:
        module: Path.
        of: Its "output" or its (first) "input"; "routing" for fused experts, which are seen where the router's choice
            enters their module (`dim`, `offset` and `span` say nothing then).
        dim: Where the units lie: 1 in maps `(N, C, H, W)`, -1 in tokens `(N, T, C)` and features `(N, C)`.
        offset: Where the units begin along `dim`.
        span: Entries per unit.
        samples: Dimension along which samples lie: 1 in tokens `(T, N, C)`.
        apart: Whether rows of one sample lie apart along it, as in `(T * N, C)`; in `(N * T, C)` they are together.
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
    """Units that can be removed alone, with everything that goes with them.

    Attributes:
        name: Path of the first module that makes the units, with more where it makes several groups (`fc:64`, `fc.b`,
            `qkv:head_dim`); unique among a model's groups of one kind.
        kind: What a unit is.
        size: How many units there are.
        slices: All tensors that lose entries.
        taps: Where the units' activations are seen, one per sum or concatenation that they enter.
        settings: Attributes that follow the number of units.
        at_least: How many units must stay.
        multiple: The number that stays is divisible by it.
        strata: The units lie in so many stretches of one length, which must keep equally many units each: experts among
            which the router chooses group by group. `multiple` is divisible by it.
        products: MACs per sample and unit in products without weights, such as attention's scores and values.
        scaled_by: Power of the number of units by which the network multiplies what units make: -0.5 where attention
            divides its logits by the root of the size of a head, 0 where its scale stays.
        params: Parameters that all units hold together; 0 until `find_sites` has counted them.
        macs: MACs of all units together on the example batch; likewise.
        block: See `Site`; likewise.
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
        """Paths of the tensors that lose entries."""
        return tuple(dict.fromkeys(part.tensor for part in self.slices))

    def summary(self) -> Summary:
        """Return its size, and the tensors that lose entries with its units."""
        title = f"Group {self.name} of {self.size} {plural(self.kind)}"
        rows = [(s.tensor, s.dim, s.span, "makes" if s.makes else "reads") for s in self.slices]
        return Summary.of_list(title, ("tensor", "dim", "per unit", "the unit"), rows, tuple)
