"""The rule of recurrent layers, followed as a whole: the operations differ between devices.

A unit of an LSTM, GRU or RNN is a hidden unit with rows in all gates, a column in the recurrent weights, and readers.
All layers and both directions of a module have the same `hidden_size`: a unit has the same number everywhere. Not
covered: `proj_size`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from prunerecover.graph.dimensions.dimension_ids import varying
from prunerecover.graph.dimensions.rules_products import NONE, along
from prunerecover.graph.dimensions.ties import Chain, Info, Product, Ties

RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)


def follow_recurrent(ties: Ties, module: nn.RNNBase, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """Note the ties of a call of a recurrent layer.

    Args:
        ties: Ties of the running forward pass.
        module: Recurrent layer.
        args: Positional arguments: the input, and optionally states.
        kwargs: Keyword arguments.
        out: Output of the layer.
    """
    given, *states = _floating((args, kwargs))
    if module.proj_size:
        for tensor in (*module.parameters(), given, *states):
            ties.ids.pin(*ties.info(tensor).maps)
        made = along(ties.info(module.get_parameter("weight_ih_l0")).maps, (0,))
        ties.record_product(Product(ties.path, "linear", made, NONE))
        ties.record_pins("proj_size")
        return
    units, recurrent = _units(ties, module)
    chain = _read_input(ties, module, given, units, recurrent)
    for tensor in states:
        _meet(ties, tensor, units)
    directions = 2 if module.bidirectional else 1
    for number, tensor in enumerate(_floating(out)):
        ids = units.repeat(directions) if number == 0 else units
        shape = (*[1] * (tensor.ndim - 1), len(ids))
        ties.note(tensor, Info((ids.view(shape),) if len(ids) > 1 else (), chain=chain))


def _units(ties: Ties, module: nn.RNNBase) -> tuple[Tensor, Tensor]:
    """Tie all parts of a hidden unit; return the ids of the units, and the ids of the weights that read the units."""
    size = module.hidden_size
    units = along(ties.info(module.get_parameter("weight_hh_l0")).maps, (1,))
    read = []
    for names in module._all_weights:
        for name in names:
            weight = getattr(module, name)
            rows = along(ties.info(weight).maps, (0,))
            if len(rows) and len(units):
                ties.ids.tie(rows.view(-1, size), units)  # a row of each gate
            columns = along(ties.info(weight).maps, (1,)) if weight.ndim > 1 else NONE
            if len(columns) and not name.startswith("weight_ih_l0"):  # columns for both directions of the layer below
                ties.ids.tie(columns.view(-1, size), units)
                read.append(columns)
    return units, torch.cat([NONE, *read])


def _read_input(ties: Ties, module: nn.RNNBase, given: Tensor, units: Tensor, recurrent: Tensor) -> Chain:
    """Note the products with the input and with hidden units; each direction reads the whole input."""
    firsts = [getattr(module, name) for names in module._all_weights for name in names if "weight_ih_l0" in name]
    columns = [along(ties.info(weight).maps, (1,)) for weight in firsts]
    for own in columns:
        _meet(ties, given, own)
    ties.record_addends(ties.info(given).chain)
    ties.ids.mark("read", *columns, recurrent)
    ties.record_product(Product(ties.path, "linear", NONE, recurrent))
    return ties.record_product(Product(ties.path, "linear", units, torch.cat(columns)))


def _meet(ties: Ties, tensor: Tensor, ids: Tensor) -> None:
    """Tie the last dimension of a tensor to ids; if either side has none, the other is rigid."""
    own = [m for m in ties.info(tensor).maps if varying(m) == (tensor.ndim - 1,)]
    for other in ties.info(tensor).maps:
        if not any(other is one for one in own):
            ties.ids.pin(other)
    if own and len(ids):
        ties.ids.tie(own[0].flatten(), ids)
    elif not ties.info(tensor).blank:
        ties.ids.pin(*own, ids)


def _floating(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
