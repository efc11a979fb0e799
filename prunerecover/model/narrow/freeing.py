"""Attentions turned into modules with removable heads: the same objects, with the same results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from torchvision.models.swin_transformer import ShiftedWindowAttention, ShiftedWindowAttentionV2

from prunerecover.model.narrow.attention import NarrowAttention
from prunerecover.model.narrow.window_attention import NarrowWindowAttention, NarrowWindowAttentionV2
from prunerecover.model.paths import get_module

FREED: Mapping[type[nn.Module], type[nn.Module]] = {
    nn.MultiheadAttention: NarrowAttention,
    ShiftedWindowAttention: NarrowWindowAttention,
    ShiftedWindowAttentionV2: NarrowWindowAttentionV2,
}
BY_CHILDREN = ("qkv", "out_proj", "proj")  # children without a call: the attention multiplies the weights itself


def sizes_heads(module: nn.Module) -> bool:
    """Whether an attention computes the head size from the number of heads, as classes in `FREED` and subclasses do.

    >>> sizes_heads(nn.MultiheadAttention(4, 2)), sizes_heads(NarrowAttention(4, 2, 2))
    (True, False)
    """
    return isinstance(module, tuple(FREED)) and not isinstance(module, tuple(FREED.values()))


def uncalled_weights(module: nn.Module) -> list[Tensor]:
    """Return the weights of children that an attention multiplies itself, without calls of the children.

    >>> [tuple(weight.shape) for weight in uncalled_weights(nn.MultiheadAttention(4, 2))]
    [(4, 4)]
    """
    if not sizes_heads(module):
        return []
    return [child.weight for name, child in module.named_children() if name in BY_CHILDREN]  # type: ignore[misc]


def attentions_in(model: nn.Module) -> tuple[str, ...]:
    """Return the paths of attentions of the classes in `FREED`, without a head size of their own yet."""
    return tuple(path for path, module in model.named_modules() if type(module) in FREED)


def free_heads(model: nn.Module, paths: Iterable[str]) -> None:
    """Turn attentions into modules with a head size of their own: the same objects, with the same results.

    Args:
        model: Network with attentions of the classes in `FREED` at the paths.
        paths: Paths of attentions.
    """
    for path in paths:
        attention = get_module(model, path)
        attention.__class__ = FREED[type(attention)]


@contextmanager
def with_free_heads(model: nn.Module, paths: Iterable[str]) -> Iterator[None]:
    """Free attentions inside a `with` block: they call their projections, where heads are seen.

    Args:
        model: Network, see `free_heads`; restored afterwards.
        paths: Paths of attentions.
    """
    paths = tuple(paths)
    before = [type(get_module(model, path)) for path in paths]
    try:
        free_heads(model, paths)
        yield
    finally:
        for path, own in zip(paths, before, strict=True):
            get_module(model, path).__class__ = own
