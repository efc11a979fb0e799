"""Attentions that become modules whose heads can go: the same objects, which compute the same."""

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
BY_CHILDREN = ("qkv", "out_proj", "proj")  # whose weights such attentions multiply by themselves, without a call


def sizes_heads(module: nn.Module) -> bool:
    """Whether an attention computes the size of its heads from their number, as these classes and their subclasses do.

    >>> sizes_heads(nn.MultiheadAttention(4, 2)), sizes_heads(NarrowAttention(4, 2, 2))
    (True, False)
    """
    return isinstance(module, tuple(FREED)) and not isinstance(module, tuple(FREED.values()))


def uncalled_weights(module: nn.Module) -> list[Tensor]:
    """Return the weights of children that an attention multiplies by itself, without calling them.

    >>> [tuple(weight.shape) for weight in uncalled_weights(nn.MultiheadAttention(4, 2))]
    [(4, 4)]
    """
    if not sizes_heads(module):
        return []
    return [child.weight for name, child in module.named_children() if name in BY_CHILDREN]  # type: ignore[misc]


def attentions_in(model: nn.Module) -> tuple[str, ...]:
    """Return the paths of attentions of these classes, whose heads have no size of their own yet."""
    return tuple(path for path, module in model.named_modules() if type(module) in FREED)


def free_heads(model: nn.Module, paths: Iterable[str]) -> None:
    """Turn attentions into modules whose heads have a size of their own, the same objects, which compute the same.

    Args:
        model: Has attentions of these classes at the paths.
        paths: Of attentions.
    """
    for path in paths:
        attention = get_module(model, path)
        attention.__class__ = FREED[type(attention)]


@contextmanager
def with_free_heads(model: nn.Module, paths: Iterable[str]) -> Iterator[None]:
    """Have freed attentions at some paths inside a `with` block: they call their projections, where heads are seen.

    Args:
        model: As of `free_heads`; is afterwards what it was.
        paths: Of attentions.
    """
    paths = tuple(paths)
    before = [type(get_module(model, path)) for path in paths]
    try:
        free_heads(model, paths)
        yield
    finally:
        for path, own in zip(paths, before, strict=True):
            get_module(model, path).__class__ = own
