"""Watch one forward pass of a model, operation by operation, and note which dimensions it ties together.

Every operation of PyTorch is seen below autograd, where linears are matrix products and attention is a kernel or two
products, whatever the model's code looks like. `rules` says what each of them ties.
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
    """Where ids lie in the input or output of a module: `ids` of the indices along `dim`, in order."""

    path: str
    of: Literal["input", "output"]
    dim: int
    ids: Tensor


@dataclass(frozen=True)
class Chain:
    """What computes a tensor unit by unit since a product with weights.

    Attributes:
        product: Number of the product, in `Ties.products`.
        seen: The output of the last module on the way that has parameters of its own, or norms.
    """

    product: int
    seen: Location | None = None


@dataclass(frozen=True, eq=False)
class Statistic:
    """A mean, variance or standard deviation over units: `ids` of theirs, and the operation and module that took it."""

    ids: Tensor
    operation: str
    path: str


@dataclass(frozen=True)
class Info:
    """What is known of a tensor.

    Attributes:
        maps: Its ids.
        static: Whether it was computed from parameters and constants alone.
        constant: Whether it was computed from nothing.
        blank: Whether it was just made, of one value: its sizes follow what is written into it.
        chain: None after a sum over several chains.
        statistics: Over units, that it was computed from; see `statistics`.
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
        path: The module in which it happened.
        made: DimensionIds of the weights' output dimension.
        read: DimensionIds of the weights' input dimension.
    """

    path: str
    op: Literal["conv", "linear", "depthwise"]
    made: Tensor
    read: Tensor


@dataclass(frozen=True)
class Attention:
    """A product of activations with activations: `ids` of its heads if any, MACs of each, and where it happened."""

    path: str
    ids: Tensor
    macs: int


# What blocks of ultralytics call the channels of each half that they cut a tensor into; some read it in exports alone.
PART = "c"


@dataclass(frozen=True)
class Count:
    """An attribute that counts something, such as `groups` of a convolution, and the ids of what is counted."""

    path: str
    attribute: str
    ids: Tensor


@dataclass(frozen=True, eq=False)
class Split:
    """A tensor that was cut along the dimension in which its ids lie: those of each part, in order."""

    parts: tuple[Tensor, ...]

    @property
    def equal(self) -> bool:
        """Whether all parts have one length."""
        return len({len(part) for part in self.parts}) == 1


@dataclass(frozen=True)
class Arithmetic:
    """An operation on tensors and Python numbers, and the module that it happened in."""

    operation: str
    path: str
    numbers: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Pin:
    """What keeps units from going one by one: `ids` of theirs, the operation, its module, and the line that ran it."""

    ids: Tensor
    operation: str
    path: str
    line: str = ""


@dataclass
class Ties:
    """Everything noted during one forward pass.

    Attributes:
        ids: And what ties them.
        products: In order of execution.
        addends: Where chains were last seen before they were added up, concatenated or read.
        normed: Outputs of modules that norm over what they are given.
        readers: Inputs of modules that read them by a product, with the ids of the weights that do.
        attentions: Products of activations with each other.
        counts: Attributes that must follow.
        statistics: Over units, that serve for more than to norm these units.
        arithmetic: With Python numbers, in order of execution.
        splits: Of tensors whose units lie along one dimension.
        pins: In order of execution.
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
    _infos: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    _modules: list[tuple[str, Any]] = field(default_factory=list)
    _norms: set[str] = field(default_factory=set)

    @property
    def path(self) -> str:
        """The innermost module that is being called."""
        return self._modules[-1][0] if self._modules else ""

    def info(self, tensor: Tensor) -> Info:
        """Return what is known of a tensor; of the model's inputs that is nothing."""
        found = self._infos.get(tensor)  # type: ignore[no-untyped-call]
        return found if isinstance(found, Info) else Info()

    def note(self, tensor: Tensor, info: Info) -> None:
        """Say what is known of a tensor."""
        self._infos[tensor] = info

    def operand(self, tensor: Tensor, ndim: int, only: tuple[int, ...] | None = None) -> Operand:
        """Describe a tensor for `unify`; `only` limits the dimensions whose sizes matter.

        Expanded dimensions (stride 0) count as broadcast: their size was taken from elsewhere.

        Args:
            tensor: That the operation reads.
            ndim: Dimensions of the operation, to which the tensor's are aligned from the right.
            only: Dimensions whose sizes matter; None: all.
        """
        info, before = self.info(tensor), ndim - tensor.ndim
        maps = tuple(aligned(m, ndim) for m in info.maps)
        covered = {dim for m in maps for dim in varying(m)}
        own = {d + before for d in range(tensor.ndim) if tensor.shape[d] > 1 and tensor.stride(d) != 0}
        solid = () if info.blank else tuple(own - covered)
        return Operand(maps, solid if only is None else tuple(d for d in solid if d in only))

    def record_pins(self, operation: str, line: str = "") -> None:
        """Note that what was pinned since the last time was pinned by an operation.

        Args:
            operation: Its name.
            line: Of the code that ran it.
        """
        if self.ids.pinned:
            self.pins.append(Pin(torch.cat(self.ids.pinned), operation, self.path, line))
            self.ids.pinned.clear()

    def record_norm(self, ids: Tensor) -> None:
        """Note that units were normed over, by the module that is being called."""
        self.ids.mark("normalised", ids)
        self._norms.add(self.path)

    def record_addends(self, *chains: Chain | None) -> None:
        """Note that chains were added up, concatenated or read."""
        for chain in chains:
            if chain is not None and chain.seen is not None:
                self.addends[chain.seen] = None

    def record_product(self, product: Product) -> Chain:
        """Note a product with weights, and what the module that it is in was given."""
        self.products.append(product)
        given = self._modules[-1][1]
        if isinstance(given, Tensor) and product.read.numel():
            single = [ids for ids in self.info(given).maps if len(varying(ids)) == 1]
            self.readers.extend((_location(self.path, "input", ids), product.read) for ids in single)
        return Chain(len(self.products) - 1)

    def enter(self, path: str, args: tuple[Any, ...]) -> None:
        """Note that a module is called."""
        self._modules.append((path, args[0] if args else None))

    def leave(self, module: nn.Module, output: Any) -> None:
        """Note that a module returned; if it has parameters or buffers of its own, its output can be seen there.

        That of a norm can in any case: what goes into it has no scale, and so no gradient along itself.
        """
        path, _ = self._modules.pop()
        own = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
        first = output[0] if isinstance(output, tuple) and output else output
        if not (own or isinstance(module, _NormBase)) or not isinstance(first, Tensor):
            return
        info = self.info(first)
        single = [ids for ids in info.maps if len(varying(ids)) == 1]
        if path in self._norms:
            self.normed |= dict.fromkeys(_location(path, "output", ids) for ids in single)
        if info.chain is not None and len(single) == 1:
            chain = replace(info.chain, seen=_location(path, "output", single[0]))
            self.note(first, replace(info, chain=chain))


def _location(path: str, of: Literal["input", "output"], ids: Tensor) -> Location:
    """Describe a map of one dimension, which is counted from the end where it is the last."""
    dim = varying(ids)[0]
    return Location(path, of, -1 if dim == ids.ndim - 1 else dim, ids.flatten())
