"""Rules for products: convolutions and matrix products read units and make new units; attention has heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from prunerecover.graph.dimensions.dimension_ids import Maps, Operand, aligned, unify, varying
from prunerecover.graph.dimensions.operation import propagate, record_output, unknown
from prunerecover.graph.dimensions.rules_elementwise import channels, note_sizes, vectors
from prunerecover.graph.dimensions.ties import Attention, Count, Info, Product, Ties
from prunerecover.graph.dimensions.watching import Operation

NONE = torch.empty(0, dtype=torch.long)


def convolution(ties: Ties, operation: Operation) -> None:
    """Read input channels and make output channels without groups; pass channels on in depthwise convolutions."""
    data, weight, bias = operation.args[:3]
    transposed, groups = operation.args[6], operation.args[8]
    own = ties.info(weight).maps
    reads, makes = (along(own, (d,)) for d in ((0, 1) if transposed else (1, 0)))
    given = next((m.flatten() for m in channels(ties, data)), NONE)
    if groups == 1:
        _meet(ties, given, reads)
        made = makes
    else:
        made = _grouped(ties, given, reads, makes, groups, transposed)
    out = (made.view(1, -1, *[1] * (data.ndim - 2)),) if made.numel() else ()
    maps = unify(ties.ids, [Operand(out), *vectors(ties, (bias,), data.ndim)])
    info = ties.info(data)
    depthwise = 1 < groups == data.shape[1]
    if not ties.info(weight).static or info.static:
        propagate(ties, operation, maps)
    elif depthwise and info.chain is not None:
        record_output(ties, operation, maps, info.chain)
    else:
        op = "depthwise" if depthwise else "conv"
        read = NONE if groups > 1 else reads
        _weighed(ties, operation, Product(ties.path, op, made, read), data, maps)  # type: ignore[arg-type]


def _meet(ties: Ties, a: Tensor, b: Tensor) -> None:
    """Tie the ids of an input to the ids of the weights; if either side has none, the other is rigid."""
    if a.numel() and b.numel():
        ties.ids.tie(a, b)
    else:
        ties.ids.pin(a, b)


def _grouped(ties: Ties, given: Tensor, reads: Tensor, makes: Tensor, groups: int, transposed: bool) -> Tensor:
    """Tie all input and output channels of a convolution's group to a unit; return the output channels."""
    along, inside = (reads, makes) if transposed else (makes, reads)  # along all groups, or inside each
    ties.ids.pin(inside)
    if not given.numel() or not along.numel():
        ties.ids.pin(given, along)
        return along[:0]
    first = given.view(groups, -1)[:, :1]
    ties.ids.tie(given.view(groups, -1), first)
    ties.ids.tie(along.view(groups, -1), first)
    if len(given) > groups:
        ties.counts.append(Count(ties.path, "groups", given))
    return first.expand(-1, max(len(inside), 1)).flatten() if transposed else along


def _weighed(ties: Ties, operation: Operation, product: Product, data: Tensor, maps: Maps) -> None:
    """Note a product of weights with data, even of seemingly constant data that were copied in."""
    ties.ids.mark("read", product.read)
    ties.record_addends(ties.info(data).chain)
    ties.note(operation.out, Info(maps, chain=ties.record_product(product)))


def matrix_product(ties: Ties, operation: Operation) -> None:
    """Note `mm` and `bmm`, or `addmm` and `baddbmm` with a bias."""
    if operation.name in ("addmm", "baddbmm"):
        bias, a, b = operation.args[:3]
        _multiply(ties, operation, a, b, bias)
    else:
        _multiply(ties, operation, operation.args[0], operation.args[1])


def linear(ties: Ties, operation: Operation) -> None:
    """Note a linear kernel of some devices; elsewhere linears are matrix products."""
    data, weight = operation.args[:2]
    turned = weight.t()
    info = ties.info(weight)
    ties.note(turned, Info(tuple(m.t() for m in info.maps), info.static))
    _multiply(ties, operation, data, turned, operation.argument(2, "bias"))


def _multiply(ties: Ties, operation: Operation, a: Tensor, b: Tensor, bias: Tensor | None = None) -> None:
    out = operation.outputs[0]
    left, right = ties.info(a), ties.info(b)
    inner = (a.ndim - 1, b.ndim - 2)
    batch = tuple(range(out.ndim - 2)) if b.ndim > 2 else ()
    operands = [
        Operand(tuple(aligned(m, out.ndim) for m in maps), ties.operand(t, out.ndim, only=batch).solid)
        for t, maps in zip((a, b), _contract(ties, left.maps, right.maps, inner), strict=True)
    ]
    if bias is not None:
        operands.append(ties.operand(bias, out.ndim))
    maps = unify(ties.ids, operands)
    if left.static and right.static:
        record_output(ties, operation, maps)
    elif left.static or right.static:
        weights, data, dim = (right.maps, a, inner[1]) if right.static else (left.maps, b, inner[0])
        made = along(weights, [d for d in range(b.ndim) if d != dim])
        _weighed(ties, operation, Product(ties.path, "linear", made, along(weights, (dim,))), data, maps)
    else:
        _mark_streams(ties, a, b)
        ties.record_addends(left.chain, right.chain)
        macs = a.shape[-2] * a.shape[-1] * b.shape[-1]
        heads = [m.select(-1, 0).select(-1, 0) for m in maps if batch == (0,) and m.shape[0] > 1]
        ties.attentions.extend(Attention(ties.path, ids, macs) for ids in heads)
        record_output(ties, operation, maps)


def _contract(ties: Ties, a: Maps, b: Maps, inner: tuple[int, int]) -> tuple[Maps, Maps]:
    """Tie the dimensions summed over in a matrix product; return the remaining maps of both sides."""
    summed = [[m for m in maps if m.shape[dim] > 1] for maps, dim in zip((a, b), inner, strict=True)]
    left = [[m for m in maps if m.shape[dim] == 1] for maps, dim in zip((a, b), inner, strict=True)]
    if all(len(maps) == 1 and len(varying(maps[0])) == 1 for maps in summed):
        ties.ids.tie(summed[0][0].flatten(), summed[1][0].flatten())
    else:
        for maps, rest, dim in zip(summed, left, inner, strict=True):
            rest += [left for m in maps for left in ties.ids.fixed_along(m, dim)]
    return tuple(left[0]), tuple(left[1])


def along(maps: Maps, dims: Sequence[int]) -> Tensor:
    """Ids along a dimension of `dims`, from maps that are constant in all other dimensions."""
    return next((m.flatten() for m in maps if len(varying(m)) == 1 and varying(m)[0] in dims), NONE)


def _mark_streams(ties: Ties, *tensors: Tensor) -> None:
    """Mark the inputs of an attention's projections as a transformer's residual stream."""
    for tensor in tensors:
        chain = ties.info(tensor).chain
        if chain is not None and ties.products[chain.product].op == "linear":
            ties.ids.mark("stream", ties.products[chain.product].read)


def attention(ties: Ties, operation: Operation) -> None:
    """Tie heads of queries `(B, H, T, D)`, keys and values `(B, K, S, D)`: each of K serves H / K adjacent heads."""
    query, key, value = operation.args[:3]
    if query.ndim != 4:
        unknown(ties, operation)
        return
    _mark_streams(ties, query, key, value)
    bias = [t for t in (*operation.args[3:], *operation.kwargs.values()) if isinstance(t, Tensor) and t.ndim <= 4]
    maps = unify(ties.ids, [_by_head(ties, tensor, query.shape[1]) for tensor in (query, key, value, *bias)])
    note_sizes(ties, bias, maps)
    macs = query.shape[0] * query.shape[2] * key.shape[2] * (query.shape[3] + value.shape[3])
    ties.attentions.extend(Attention(ties.path, m.flatten(), macs) for m in maps or (NONE,))
    record_output(ties, operation, maps)


def _by_head(ties: Ties, tensor: Tensor, heads: int) -> Operand:
    """Return the operand of queries, keys, values or a mask by heads alone, along dimension 1 of four.

    A mask may be a buffer, `(T, S)` or more, with ids along tokens that meet no units, for any number of tokens.
    """
    operand = ties.operand(tensor, 4, only=(1,))
    own = (left for m in operand.maps for left in ties.ids.fixed_along(m, 0, 2, 3))
    return Operand(tuple(m.repeat_interleave(heads // m.shape[1], 1) for m in own), operand.solid)


def embedding(ties: Ties, operation: Operation) -> None:
    """Keep the ids of a table's columns; rows are picked by number."""
    table, index = operation.args[:2]
    maps = [left for m in ties.info(table).maps for left in ties.ids.fixed_along(m, 0)]
    record_output(ties, operation, tuple(aligned(m[0], index.ndim + 1) for m in maps))
