"""torchvision's attentions in shifted windows (Swin) with a fixed head size, for any number of heads.

torchvision's own classes compute the head size from the width of the stream and `num_heads`: none of their heads can be
removed. The classes here take the same calls, with the same parameters; the head size is the size of the head's part of
`qkv`. Windows are cut as in Swin (Liu 2021, arXiv 2103.14030, section 3.2) and Swin V2 (Liu 2021, arXiv 2111.09883,
section 3).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.swin_transformer import ShiftedWindowAttention, ShiftedWindowAttentionV2

Sides = tuple[int, int]
APART = -100.0  # added to the score of two tokens, neighbours only by the roll of the image


class NarrowWindowAttention(ShiftedWindowAttention):  # type: ignore[misc]
    """Attention of Swin; with h heads of size d, `qkv.weight` is `(3 * h * d, dim)` and `proj.weight` `(dim, h * d)`.

    Surgery puts the class in place of torchvision's own, which has the same arguments, where attentions lose heads.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Attend within windows, `(N, H, W, C)` to the same shape."""
        height, width = x.shape[1:3]
        side = (self.window_size[0], self.window_size[1])
        x = F.pad(x, (0, 0, 0, -width % side[1], 0, -height % side[0]))
        padded = (x.shape[1], x.shape[2])
        shift = (self._shift(0, padded), self._shift(1, padded))
        if any(shift):
            x = torch.roll(x, (-shift[0], -shift[1]), (1, 2))
        out = self._attend(_windows(x, side), _borders(padded, side, shift, x) if any(shift) else None)
        x = _image(out, padded, side)
        if any(shift):
            x = torch.roll(x, shift, (1, 2))
        return x[:, :height, :width].contiguous()

    def _shift(self, axis: int, padded: Sides) -> int:
        """Shift of windows along an axis: 0 where a single window covers the axis."""
        return 0 if self.window_size[axis] >= padded[axis] else self.shift_size[axis]

    def _attend(self, tokens: Tensor, borders: Tensor | None) -> Tensor:
        """Attend among the tokens of each window, `(N * windows, T, C)` to the same shape."""
        heads = torch.unflatten(self._project(tokens), -1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = self._scores(heads[0], heads[1]) + self.get_relative_position_bias()
        if borders is not None:
            scores = (torch.unflatten(scores, 0, (-1, len(borders))) + borders[:, None]).flatten(0, 1)
        weights = F.dropout(scores.softmax(-1), self.attention_dropout, self.training)
        out: Tensor = self.proj((weights @ heads[2]).transpose(1, 2).flatten(2))
        return F.dropout(out, self.dropout, self.training)

    def _project(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.qkv(tokens)
        return made

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q / math.sqrt(q.shape[-1]) @ k.transpose(-2, -1)


class NarrowWindowAttentionV2(NarrowWindowAttention, ShiftedWindowAttentionV2):  # type: ignore[misc]
    """Attention of Swin V2: cosines times a scale of each head, keys without bias, positions by a small network."""

    def _project(self, tokens: Tensor) -> Tensor:
        bias = self.qkv.bias
        if bias is not None:
            q, k, v = bias.chunk(3)
            bias = torch.cat([q, torch.zeros_like(k), v])
        return F.linear(tokens, self.qkv.weight, bias)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        scale: Tensor = self.logit_scale.clamp(max=math.log(100.0)).exp()
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * scale


def _windows(x: Tensor, side: Sides) -> Tensor:
    """Cut `(N, H, W, C)` into windows, `(N * windows, T, C)`."""
    x = torch.unflatten(torch.unflatten(x, 2, (-1, side[1])), 1, (-1, side[0]))
    return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)


def _image(windows: Tensor, padded: Sides, side: Sides) -> Tensor:
    """Join windows to an image, the inverse of `_windows`."""
    rows, columns = padded[0] // side[0], padded[1] // side[1]
    x = torch.unflatten(torch.unflatten(windows, 1, side), 0, (-1, rows, columns))
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _borders(padded: Sides, side: Sides, shift: Sides, like: Tensor) -> Tensor:
    """Return the addend to scores, `(windows, T, T)`: `APART` for tokens from two ends of the rolled image."""
    rows, columns = (
        torch.arange(size, device=like.device) >= size - by for size, by in zip(padded, shift, strict=True)
    )
    ends = (2 * rows[:, None] + columns).to(like.dtype)
    tokens = _windows(ends[None, :, :, None], side)[..., 0]
    return (tokens[:, None] != tokens[:, :, None]).to(like.dtype) * APART
