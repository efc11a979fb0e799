"""Ties of a forward pass: the dimensions tied together, operation by operation.

Every operation of PyTorch is seen below autograd, where linears are matrix products and attention is a kernel or two
products, whatever the model's code looks like. `rules` defines the ties of each operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.weak import WeakTensorKeyDictionary

from prunerecover.graph.dimensions.dimension_ids import DimensionIds, Maps, Operand, aligned, varying


@dataclass(frozen=True, eq=False)
class Location:
    """Place of ids in the input or output of a module: `ids` of the indices along `dim`, in order."""

    path: str
    of: Literal["input", "output"]
    dim: int
    ids: Tensor


@dataclass(frozen=True)
class Chain:
    """Operations that compute a tensor unit by unit since a product with weights.

    Attributes:
        product: Number of the product, in `Ties.products`.
        seen: Output of the last module on the way with parameters of its own, or with a norm.
    """

    product: int
    seen: Location | None = None


@dataclass(frozen=True, eq=False)
class Statistic:
    """A mean, variance or standard deviation over units, with the units' `ids`, the operation and the module."""

    ids: Tensor
    operation: str
    path: str


@dataclass(frozen=True)
class Info:
    """Record of a tensor.

    Attributes:
        maps: Ids of the tensor.
        static: Whether the tensor was computed from parameters and constants alone.
        constant: Whether the tensor was computed from constants alone.
        blank: Whether the tensor is new, with a single value: its sizes follow from values written later.
        chain: Chain behind the tensor; None after a sum over several chains.
        statistics: Statistics over units behind the tensor; see `statistics`.
    """

    maps: Maps = ()
    static: bool = False
    constant: bool = False
    blank: bool = False
    chain: Chain | None = None
    statistics: tuple[Statistic, ...] = ()


@dataclass(frozen=True)
class Product:
    """A convolution or matrix product of activations with weights.

    Attributes:
        path: Module of the product.
        op: Kind of product.
        made: Ids of the weights' output dimension.
        read: Ids of the weights' input dimension.
    """

    path: str
    op: Literal["conv", "linear", "depthwise"]
    made: Tensor
    read: Tensor


@dataclass(frozen=True)
class Attention:
    """A product of activations with activations: `ids` of the heads if any, MACs of each head, and the module."""

    path: str
    ids: Tensor
    macs: int


# Attribute of ultralytics' blocks for the channels of each half of a split tensor; some blocks use it in exports alone.
PART = "c"


@dataclass(frozen=True)
class Count:
    """An attribute that counts units, such as `groups` of a convolution, and the ids of the units."""

    path: str
    attribute: str
    ids: Tensor


@dataclass(frozen=True, eq=False)
class Split:
    """A tensor cut along the dimension of the ids: the ids of each part, in order."""

    parts: tuple[Tensor, ...]

    @property
    def equal(self) -> bool:
        """Whether all parts have the same length."""
        return len({len(part) for part in self.parts}) == 1


@dataclass(frozen=True)
class Arithmetic:
    """An operation on tensors and Python numbers, and the module around."""

    operation: str
    path: str
    numbers: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Pin:
    """A reason to keep units: the units' `ids`, the operation, the module, and the line of code."""

    ids: Tensor
    operation: str
    path: str
    line: str = ""


@dataclass
class Ties:
    """All records of a forward pass.

    Attributes:
        ids: Ids and ties.
        products: Products in order of execution.
        addends: Last locations of chains before a sum, a concatenation or a read.
        normed: Outputs of modules with a norm over the input.
        readers: Inputs of modules with a product, each with the ids of the reading weights.
        attentions: Products of activations with activations.
        counts: Attributes that must follow the number of units.
        statistics: Statistics over units, used for more than a norm of the same units.
        arithmetic: Operations with Python numbers, in order of execution.
        splits: Splits of tensors along a dimension of units.
        pins: Pins in order of execution.
        channels: Dimension of the channels in the first output of a module, by path, where a single dimension of the
            output has ids; the last dimension counts from the end.
    """

    ids: DimensionIds = field(default_factory=DimensionIds)
    products: list[Product] = field(default_factory=list)
    addends: dict[Location, None] = field(default_factory=dict)
    normed: dict[Location, None] = field(default_factory=dict)
    readers: list[tuple[Location, Tensor]] = field(default_factory=list)
    attentions: list[Attention] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    statistics: list[Statistic] = field(default_factory=list)
    arithmetic: list[Arithmetic] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)
    pins: list[Pin] = field(default_factory=list)
    channels: dict[str, int] = field(default_factory=dict)
    _infos: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    _modules: list[tuple[str, Any]] = field(default_factory=list)
    _norms: set[str] = field(default_factory=set)

    @property
    def path(self) -> str:
        """Path of the innermost running module."""
        return self._modules[-1][0] if self._modules else ""

    def info(self, tensor: Tensor) -> Info:
        """Return the record of a tensor; empty for the model's inputs."""
        found = self._infos.get(tensor)  # type: ignore[no-untyped-call]
        return found if isinstance(found, Info) else Info()

    def note(self, tensor: Tensor, info: Info) -> None:
        """Set the record of a tensor."""
        self._infos[tensor] = info

    def operand(self, tensor: Tensor, ndim: int, only: tuple[int, ...] | None = None) -> Operand:
        """Return a tensor as operand for `unify`; `only` limits the dimensions whose sizes matter.

        Expanded dimensions (stride 0) count as broadcast: their size comes from another tensor.

        Args:
            tensor: Tensor that the operation reads.
            ndim: Dimensions of the operation; the tensor's are aligned from the right.
            only: Dimensions whose sizes matter; None: all.
        """
        info, before = self.info(tensor), ndim - tensor.ndim
        maps = tuple(aligned(m, ndim) for m in info.maps)
        covered = {dim for m in maps for dim in varying(m)}
        own = {d + before for d in range(tensor.ndim) if tensor.shape[d] > 1 and tensor.stride(d) != 0}
        solid = () if info.blank else tuple(own - covered)
        return Operand(maps, solid if only is None else tuple(d for d in solid if d in only))

    def record_pins(self, operation: str, line: str = "") -> None:
        """Record the newly pinned ids as pinned by an operation.

        Args:
            operation: Name of the operation.
            line: Line of code of the operation.
        """
        if self.ids.pinned:
            self.pins.append(Pin(torch.cat(self.ids.pinned), operation, self.path, line))
            self.ids.pinned.clear()

    def record_norm(self, ids: Tensor) -> None:
        """Record a norm over units in the running module."""
        self.ids.mark("normalised", ids)
        self._norms.add(self.path)

    def record_addends(self, *chains: Chain | None) -> None:
        """Record a sum, a concatenation or a read of chains."""
        for chain in chains:
            if chain is not None and chain.seen is not None:
                self.addends[chain.seen] = None

    def record_product(self, product: Product) -> Chain:
        """Record a product with weights, and the input of the module around."""
        self.products.append(product)
        given = self._modules[-1][1]
        if isinstance(given, Tensor) and product.read.numel():
            single = [ids for ids in self.info(given).maps if len(varying(ids)) == 1]
            self.readers.extend((_location(self.path, "input", ids), product.read) for ids in single)
        return Chain(len(self.products) - 1)

    def enter(self, path: str, args: tuple[Any, ...]) -> None:
        """Note a call of a module."""
        self._modules.append((path, args[0] if args else None))

    def leave(self, module: nn.Module, output: Any) -> None:
        """Note the return of a module; the output is a location if the module itself has parameters or buffers.

        The output of a norm is a location in any case: the norm's input has no scale, and no gradient along itself.
        """
        path, _ = self._modules.pop()
        own = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
        first = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(first, Tensor):
            return
        info = self.info(first)
        single = [ids for ids in info.maps if len(varying(ids)) == 1]
        if len(info.maps) == len(single) == 1:
            self.channels.setdefault(path, _location(path, "output", single[0]).dim)
        if not (own or isinstance(module, _NormBase)):
            return
        if path in self._norms:
            self.normed |= dict.fromkeys(_location(path, "output", ids) for ids in single)
        if info.chain is not None and len(single) == 1:
            chain = replace(info.chain, seen=_location(path, "output", single[0]))
            self.note(first, replace(info, chain=chain))


def _location(path: str, of: Literal["input", "output"], ids: Tensor) -> Location:
    """Return the location of a map with a single dimension; the last dimension counts from the end."""
    dim = varying(ids)[0]
    return Location(path, of, -1 if dim == ids.ndim - 1 else dim, ids.flatten())
