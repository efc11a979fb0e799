"""Hidden states of prompts after the model's first blocks, which a router read, handed to the generation that follows.

All sets keep these blocks, so that the first step of `generate` would compute the same again: for a prompt of 64 tokens
more than a hundredth of writing 128. Where that step enters a block with what the router's run entered it with, keys
and values go into the cache and the block's output is handed on. Anything else is computed: beams, padded prompts,
sliding windows, and caches of other kinds than transformers' own that grows.
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

GROWS = "DynamicLayer"  # transformers' class of what a cache holds of a layer: all keys and values


@dataclass(frozen=True)
class BlockStates:
    """What entered and left one block, `(N, T, C)`, and its keys and values, `(N, heads, T, head size)`."""

    entered: Tensor
    left: Tensor
    keys: Tensor
    values: Tensor

    def rows(self, rows: Sequence[int]) -> BlockStates:
        """Return those of some prompts."""
        return self if list(rows) == list(range(len(self.left))) else BlockStates(*(t[list(rows)] for t in self._all))

    @property
    def _all(self) -> tuple[Tensor, ...]:
        return self.entered, self.left, self.keys, self.values


@contextmanager
def recorded(network: nn.Module, blocks: int) -> Iterator[list[list[BlockStates]]]:
    """Record the first blocks inside a `with` block: per block, what each of its runs was.

    Args:
        network: That a router reads with.
        blocks: How many are recorded.
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
    """Return the states of all prompts, by block; none unless all are of one length and were read in their order."""
    lengths = {len(prompt) for prompt in prompts}
    joined = [BlockStates(*map(torch.cat, zip(*(s._all for s in runs), strict=True))) for runs in found if runs]
    whole = [(len(prompts), *lengths) == tuple(s.left.shape[:2]) == (len(s.keys), s.keys.shape[-2]) for s in joined]
    return joined if len(joined) == len(found) and all(whole) else []


@contextmanager
def handed_on(network: nn.Module, states: Sequence[BlockStates]) -> Iterator[None]:
    """Let a network's first blocks hand on what is known of prompts inside a `with` block.

    Args:
        network: Without the blocks of a set; the first ones are those of the network that was recorded.
        states: By block, of the prompts that are generated for.
    """
    with ExitStack() as stack:
        for index, (module, known) in enumerate(zip(_blocks_of(network), states, strict=False)):
            answer = _Answer(module, index, known)
            setattr(module, "forward", answer)  # noqa: B010  (mypy: a method)
            stack.callback(answer.remove)
        yield


class _Answer:
    """A block's forward that hands on what is known, once; another thread's calls compute."""

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
        """Put back the forward of before, unless another thread has taken its place."""
        if vars(self._block).get("forward") is self and self._before is None:
            vars(self._block).pop("forward")
        elif vars(self._block).get("forward") is self:
            setattr(self._block, "forward", self._before)  # noqa: B010


def _blocks_of(network: nn.Module) -> list[nn.Module]:
    return list(get_module(network, container_of(network)).children())
