"""Trial of an attention with smaller heads, outside the network, with random weights.

Attention as in papers reads queries and keys by their products alone, and sums values. The output is therefore
unchanged if queries of a head go through any invertible matrix A, keys through the inverse transpose of A, values
through B, and the reader of heads through the inverse of B. Rotary positions, norms of heads, tables of positions and
gates change the output; the test needs no knowledge of the code. An attention that passes may have fewer dimensions, by
any linear maps. The remaining question is the dependence of the scale on the number of dimensions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from prunerecover.model.batches import ModelInputs
from prunerecover.model.copies import copy_with, deep_copy
from prunerecover.model.hooks import Called, calls_of, first_tensor
from prunerecover.model.paths import get_module, parent_path
from prunerecover.plan.edits import Narrow
from prunerecover.plan.groups import Setting
from prunerecover.surgery.journal import Journal
from prunerecover.surgery.narrowing import narrow
from prunerecover.width.heads.layout import HeadLayout, entries_of, mapped, with_entries

POWERS = (-0.5, 0.0, -1.0)  # possible powers of the head size in a scale
TOLERANCE = 1e-3  # for single precision, relative to the contribution of heads; unequal outputs differ by tenths


@dataclass(frozen=True)
class HeadTrial:
    """Trial of an attention.

    Attributes:
        attention: Copy in single precision, in evaluation mode; not changed.
        called: Arguments of a call.
        layout: Layout of the heads, in tensors of the copy.
        settings: Attributes of the copy that depend on the head size.
    """

    attention: nn.Module
    called: Called
    layout: HeadLayout
    settings: tuple[Setting, ...]

    @classmethod
    def of(cls, module: nn.Module, called: Called, layout: HeadLayout, settings: tuple[Setting, ...] = ()) -> HeadTrial:
        """Return the trial of a module for a call, with random weights.

        Args:
            module: Attention in evaluation mode; not changed.
            called: Arguments of a call, as of `calls_of`; not changed.
            layout: Layout of the heads, in the module's tensors.
            settings: Attributes of the module.
        """
        attention = deep_copy(module).float()
        cast = tree_map(lambda x: x.float() if isinstance(x, Tensor) and x.is_floating_point() else x, called)
        trial = cls(attention, cast, layout, settings)
        size = float(trial.inputs()[0].square().mean().sqrt()) or 1.0
        generator = torch.Generator().manual_seed(0)
        for part in {part.tensor: part for part in layout.slices}.values():
            parameter = attention.get_parameter(part.tensor)
            spread = 0.5 if parameter.ndim == 1 else (parameter.numel() / parameter.shape[part.dim]) ** -0.5
            if part.makes and parameter.ndim > 1:  # logits of about one show their scale
                spread /= size
            drawn = spread * torch.randn(parameter.shape, generator=generator)
            parameter.data = drawn.to(parameter)
        return trial

    def by_products_alone(self, *, products: bool = True) -> bool:
        """Whether the output is unchanged by maps of heads that preserve products and sums.

        Args:
            products: Switch for maps of queries and keys.
        """
        q = k = torch.eye(self.layout.size).expand(self.layout.heads, -1, -1)
        if products:
            q, k = _inverse_pair(self.layout, seed=1)
        v, out = _inverse_pair(self.layout, seed=2)
        return self._off(self._output(self._through((q, k, v), out)), self._dense) < TOLERANCE

    def inputs(self) -> list[Tensor]:
        """Return the inputs of queries, keys and values, once for each module that makes some."""
        makers = {parent_path(part.tensor) for part in self.layout.weights}
        if any(isinstance(get_module(self.attention, path), nn.MultiheadAttention) for path in makers):
            args, kwargs = self.called  # the module multiplies without calling its linears
            named = (kwargs[name] for name in ("query", "key", "value") if name in kwargs)
            return [x for x in (*args[:3], *named) if isinstance(x, Tensor)]
        inputs = ModelInputs(*copy.deepcopy(self.called))
        return [first_tensor(*found) for found in calls_of(self.attention, makers, inputs).values()]

    def reads_one_input(self) -> bool:
        """Whether queries, keys and values have the same input."""
        first, *others = self.inputs()
        return all(first.shape == other.shape and torch.equal(first, other) for other in others)

    def scaled_by(self) -> float | None:
        """Return the power of the number of dimensions in the scale of logits; None if the power is not unique.

        A copy with fewer dimensions is compared with a copy with the same queries, keys and values at zero.
        """
        whole, left = self.layout.size, max(self.layout.size // 2, 1)
        first = torch.eye(whole)[:left].expand(self.layout.heads, -1, -1)
        zeroed = first.transpose(1, 2) @ first
        masked = self._output(self._through((zeroed, zeroed, zeroed), zeroed))
        edit = Narrow(
            unit="heads",
            kind="head_dim",
            of=whole,
            keep=tuple(range(left)),
            group=self.layout.slices,
            settings=self.settings,
        )
        able = []
        for power in POWERS:
            narrowed = self._output(self._through(((whole / left) ** power * zeroed, zeroed, zeroed), zeroed), edit)
            able += [power] if self._off(narrowed, masked) < TOLERANCE else []
        return able[0] if len(able) == 1 else None

    @cached_property
    def _dense(self) -> Tensor:
        return self._output({})

    @cached_property
    def _share(self) -> float:
        """Contribution of heads to the output."""
        none = torch.zeros(self.layout.heads, self.layout.size, self.layout.size)
        whole = torch.eye(self.layout.size).expand_as(none)
        silent = self._output(self._through((whole, whole, whole), none))
        return float((silent - self._dense).abs().max())

    def _off(self, output: Tensor, wanted: Tensor) -> float:
        return float((output - wanted).abs().max()) / self._share if self._share else float("inf")

    def _through(self, made: tuple[Tensor, Tensor, Tensor], read: Tensor) -> dict[str, Tensor]:
        """Return the tensors of queries, keys, values and the reader of heads after maps of every head."""
        values: dict[str, Tensor] = {}
        for (weight, bias), maps in zip(self.layout.made(), made, strict=True):
            for part in filter(None, (weight, bias)):
                self._map(values, part, maps)
        self._map(values, self.layout.output, read)
        return values

    def _map(self, values: dict[str, Tensor], part: Any, maps: Tensor) -> None:
        tensor = values.get(part.tensor, self.attention.get_parameter(part.tensor))
        new = mapped(entries_of(tensor, part, self.layout.size), maps.to(tensor))
        values[part.tensor] = with_entries(tensor, part, new)

    def _output(self, values: Mapping[str, Tensor], edit: Narrow | None = None) -> Tensor:
        """Return the first output tensor with other values, optionally after an edit."""
        twin = copy_with(self.attention, values)
        if edit is not None:
            narrow(twin, edit, Journal())
        args, kwargs = copy.deepcopy(self.called)
        with torch.no_grad():
            output = twin(*args, **kwargs)
        return next(leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))


def _inverse_pair(layout: HeadLayout, seed: int) -> tuple[Tensor, Tensor]:
    """Return random matrices of every head, and the inverse transpose of each, `(heads, size, size)`."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(2, layout.heads, layout.size, layout.size, generator=generator)
    (left, right), sizes = torch.linalg.qr(drawn)[0], torch.linspace(0.5, 2, layout.size)
    return (left * sizes) @ right, (left / sizes) @ right
