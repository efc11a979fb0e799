"""llama.cpp's computation on a `deci` file, after the graph in its src/models/deci.cpp.

Three properties of the graph are repeated on purpose: the head size comes from the first layer, a layer with attention
but without an MLP is skipped, and neighbours are rotated, not halves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch import Tensor
from torch.nn import functional as F


class DeciFile:
    """A file, opened.

    Args:
        path: Path of the file.

    Attributes:
        tensors: Tensors in float32, by name.
        kinds: Names of the tensors' types, by name.
    """

    def __init__(self, path: Path) -> None:
        self.reader = GGUFReader(path)
        assert self.of("general.architecture") == "deci"
        self.tensors = {t.name: torch.from_numpy(dequantize(t.data, t.tensor_type).copy()) for t in self.reader.tensors}
        self.kinds = {t.name: t.tensor_type.name for t in self.reader.tensors}
        self.used: set[str] = set()

    def of(self, key: str) -> Any:
        """Return the value of a key."""
        field = self.reader.get_field(key)
        assert field is not None, key
        return field.contents()

    def entry(self, name: str) -> Any:
        """Return the value of a key of the architecture."""
        return self.of(f"deci.{name}")

    def tensor(self, name: str) -> Tensor:
        self.used.add(name)
        return self.tensors[name]

    def layer(self, i: int) -> tuple[int, int, int]:
        """Return the numbers of heads, of keys' heads and of neurons of a layer."""
        entries = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
        heads, shared, neurons = (self.entry(name)[i] for name in entries)
        return heads, shared, neurons

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the logits of tokens `(N, T)`."""
        hidden = F.embedding(tokens, self.tensor("token_embd.weight"))
        size = self.entry("attention.key_length") if self.layer(0)[0] else 0
        for i in range(self.entry("block_count")):
            hidden = self._layer(i, hidden, size)
        head = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        return F.linear(self._normed(hidden, "output_norm"), self.tensor(head))

    def _layer(self, i: int, hidden: Tensor, size: int) -> Tensor:
        heads, shared, neurons = self.layer(i)
        name = f"blk.{i}."
        added = hidden
        if heads:
            normed = self._normed(hidden, f"{name}attn_norm")
            added = self._attended(name, normed, size) if shared else self._mapped(normed, f"{name}attn_output")
        if not neurons:
            return hidden
        if heads:
            added = added + hidden
        normed = self._normed(added, f"{name}ffn_norm")
        gated = F.silu(self._mapped(normed, f"{name}ffn_gate")) * self._mapped(normed, f"{name}ffn_up")
        assert gated.shape[-1] == neurons
        return added + self._mapped(gated, f"{name}ffn_down")

    def _attended(self, name: str, normed: Tensor, size: int) -> Tensor:
        query, key, value = (
            self._mapped(normed, f"{name}attn_{one}").unflatten(-1, (-1, size)).transpose(1, 2) for one in "qkv"
        )
        heads, shared, _ = self.layer(int(name.split(".")[1]))
        assert (query.shape[1], key.shape[1], value.shape[1]) == (heads, shared, shared)
        key, value = (x.repeat_interleave(heads // shared, 1) for x in (self._rotated(key), value))
        scores = self._rotated(query) @ key.transpose(2, 3) * size**-0.5
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value
        return self._mapped(mixed.transpose(1, 2).flatten(2), f"{name}attn_output")

    def _rotated(self, heads: Tensor) -> Tensor:
        size = heads.shape[-1]
        assert size == self.entry("rope.dimension_count")
        steps = self.entry("rope.freq_base") ** (-torch.arange(0, size, 2) / size)
        if "rope_freqs.weight" in self.tensors:
            steps = steps / self.tensor("rope_freqs.weight")
        angles = torch.outer(torch.arange(heads.shape[2]).float(), steps)
        pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones(()), angles)).flatten(-2)

    def _mapped(self, x: Tensor, name: str) -> Tensor:
        bias = self.tensor(f"{name}.bias") if f"{name}.bias" in self.tensors else None
        return F.linear(x, self.tensor(f"{name}.weight"), bias)

    def _normed(self, x: Tensor, name: str) -> Tensor:
        epsilon = self.entry("attention.layer_norm_rms_epsilon")
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * self.tensor(f"{name}.weight")
