"""Hidden states of prompts after the first blocks of a model, read by a router and reused in the generation.

All sets keep these blocks, and the first step of `generate` would compute the same again: for a prompt of 64 tokens
more than a hundredth of the time for 128 new tokens. If the input of a block equals the recorded input, keys and values
go into the cache, and the recorded output is returned. Computed as usual are beams, padded prompts, sliding windows,
and caches other than the growing cache of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.families.describe import container_of
from prunerecover.model.hooks import first_tensor
from prunerecover.model.key_values import cache_given
from prunerecover.model.paths import get_module

GROWS = "DynamicLayer"  # transformers' cache of a layer with all keys and values


@dataclass(frozen=True)
class BlockStates:
    """Input and output of a block, `(N, T, C)`, and its keys and values, `(N, heads, T, head size)`."""

    entered: Tensor
    left: Tensor
    keys: Tensor
    values: Tensor

    def rows(self, rows: Sequence[int]) -> BlockStates:
        """Return the states of some prompts."""
        return self if list(rows) == list(range(len(self.left))) else BlockStates(*(t[list(rows)] for t in self._all))

    @property
    def _all(self) -> tuple[Tensor, ...]:
        return self.entered, self.left, self.keys, self.values


@contextmanager
def recorded(network: nn.Module, blocks: int) -> Iterator[list[list[BlockStates]]]:
    """Record the first blocks inside a `with` block: a list of runs per block.

    Args:
        network: Network that a router reads with.
        blocks: Number of blocks to record.
    """
    modules = _blocks_of(network)[:blocks]
    found: list[list[BlockStates]] = [[] for _ in modules]

    with ExitStack() as stack:
        for index, module in enumerate(modules):

            def note(_: nn.Module, args: Any, kwargs: Any, output: Any, index: int = index) -> None:
                layers = getattr(cache_given(kwargs), "layers", ())
                own: Any = layers[index] if len(layers) > index else None
                if type(own).__name__ == GROWS and isinstance(output, Tensor):
                    found[index].append(BlockStates(first_tensor(args, kwargs), output, own.keys, own.values))

            stack.callback(module.register_forward_hook(note, with_kwargs=True).remove)
        yield found


def of_prompts(found: list[list[BlockStates]], prompts: Sequence[Sequence[int]]) -> list[BlockStates]:
    """Return the states of all prompts, by block; empty unless prompts have equal length and were read in order."""
    lengths = {len(prompt) for prompt in prompts}
    joined = [BlockStates(*map(torch.cat, zip(*(s._all for s in runs), strict=True))) for runs in found if runs]
    whole = [(len(prompts), *lengths) == tuple(s.left.shape[:2]) == (len(s.keys), s.keys.shape[-2]) for s in joined]
    return joined if len(joined) == len(found) and all(whole) else []


@contextmanager
def handed_on(network: nn.Module, states: Sequence[BlockStates]) -> Iterator[None]:
    """Have the first blocks of a network return recorded outputs inside a `with` block.

    Args:
        network: Network without the blocks of a set, with the same first blocks as the recorded network.
        states: Recorded states of the prompts, by block.
    """
    with ExitStack() as stack:
        for index, (module, known) in enumerate(zip(_blocks_of(network), states, strict=False)):
            answer = _Answer(module, index, known)
            setattr(module, "forward", answer)  # noqa: B010  (mypy: a method)
            stack.callback(answer.remove)
        yield


class _Answer:
    """Forward of a block that returns the recorded output once; calls of further threads compute."""

    def __init__(self, block: nn.Module, index: int, known: BlockStates) -> None:
        before = vars(block).get("forward")
        self._before: Any = before._before if isinstance(before, _Answer) else before
        self._block, self._index, self._known = block, index, known

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        cache = cache_given(kwargs)
        hidden = first_tensor(args, kwargs)
        empty = type(cache).__name__ == "DynamicCache" and not cache.get_seq_length(self._index)
        if empty and torch.equal(hidden, self._known.entered):
            cache.update(self._known.keys, self._known.values, self._index)
            return self._known.left
        return (self._before or type(self._block).forward.__get__(self._block))(*args, **kwargs)

    def remove(self) -> None:
        """Restore the previous forward, unless replaced by another thread."""
        if vars(self._block).get("forward") is self and self._before is None:
            vars(self._block).pop("forward")
        elif vars(self._block).get("forward") is self:
            setattr(self._block, "forward", self._before)  # noqa: B010


def _blocks_of(network: nn.Module) -> list[nn.Module]:
    return list(get_module(network, container_of(network)).children())
