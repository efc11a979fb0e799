"""Decoding token by token in two modes: eager with a growing cache, and compiled with a cache of fixed size.

Both write the same tokens after the same prompt and remove them from the cache again, so that every call does the same
work. Compiled is a graph of a single token for each network (torch.compile with inductor), with fixed shapes and
without Dynamo's guards, because nothing changes between calls. The first call compiles, and is not timed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.model.key_values import cache_returned

PROMPT, WRITTEN = 64, 8


class Decoding(nn.Module):
    """Writes some tokens after a cached prompt, and removes them from the cache again."""

    def __init__(self, network: nn.Module, prompt: Tensor) -> None:
        super().__init__()
        self.network = network
        with torch.inference_mode():
            self.cache = self.filled(prompt)
        self.positions = [torch.tensor([[prompt.shape[1] + i]]) for i in range(WRITTEN)]

    def forward(self, token: Tensor) -> Tensor:
        """Return the logits of the last token."""
        with torch.inference_mode():
            for position in self.positions:
                logits = self.step(token, position)
                token = logits.argmax(-1, keepdim=True)
            for cache in self.cache.values():
                cache.crop(-WRITTEN)
        return logits

    def filled(self, prompt: Tensor) -> dict[str, Any]:
        """Return a cache with a prompt, under its argument name."""
        return cache_returned(self.network(input_ids=prompt, use_cache=True))

    def cache_bytes(self) -> int:
        """Return the bytes of all keys and values in the cache."""
        (cache,) = self.cache.values()
        held = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values) if tensor is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def step(self, token: Tensor, position: Tensor) -> Tensor:
        """Return the logits `(B, V)` behind a token `(B, 1)` at a position `(1, 1)`."""
        output = self.network(input_ids=token, **self.cache, position_ids=position, use_cache=True)
        logits: Tensor = output.logits[:, -1]
        return logits


class CompiledDecoding(Decoding):
    """Decoding with a compiled step and a cache of full size from the start."""

    def __init__(self, network: nn.Module, prompt: Tensor) -> None:
        super().__init__(network, prompt)
        self.step = torch.compile(  # type: ignore[method-assign]
            self.step,
            fullgraph=True,
            dynamic=False,
            isolate_recompiles=True,  # two networks share the code of their classes, and must not share its graphs
            options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
        )

    def filled(self, prompt: Tensor) -> dict[str, Any]:
        """Return a cache of fixed size with a prompt, under its argument name."""
        from transformers import StaticCache

        config: Any = self.network.config
        cache = StaticCache(config=config, max_cache_len=prompt.shape[1] + WRITTEN)
        name = next(iter(super().filled(prompt[:, :1])))
        self.network(input_ids=prompt, **{name: cache}, use_cache=True)
        return {name: cache}
