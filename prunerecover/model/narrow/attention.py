"""`nn.MultiheadAttention` with a fixed head size, for any number of heads.

PyTorch's own class computes the head size from `embed_dim` and `num_heads`: none of its heads can be removed.
`NarrowAttention` has the same calls, results and parameter names, but its projections map to `num_heads * head_dim`
features instead of `embed_dim`. Surgery puts it in place of attentions that lose heads.

Not covered: nested tensors and TorchScript.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class NarrowAttention(nn.MultiheadAttention):
    """Attention with a head size of its own; parameters have the names of `nn.MultiheadAttention`.

    With h heads of size d: `in_proj_weight` `(3 * h * d, embed_dim)` and `in_proj_bias`, `out_proj.weight` `(embed_dim,
    h * d)` and `out_proj.bias`. Where keys or values have widths of their own, `q_proj_weight`, `k_proj_weight` and
    `v_proj_weight` instead of `in_proj_weight`.

    Args:
        embed_dim: Width of queries and of the output.
        num_heads: Number of heads, at least 1.
        head_dim: Size of each head.
        dropout: Dropout of attention weights, in training.
        bias: Whether projections have a bias.
        kdim: Width of keys; None: `embed_dim`.
        vdim: Width of values; None: `embed_dim`.
        batch_first: Whether inputs are `(N, L, E)` rather than `(L, N, E)`.

    Raises:
        ValueError: If a number is below 1.

    >>> attention = NarrowAttention(8, num_heads=3, head_dim=4, batch_first=True)
    >>> x = torch.randn(2, 5, 8)
    >>> attention(x, x, x)[0].shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
    ) -> None:
        if min(embed_dim, num_heads, head_dim) < 1:
            raise ValueError(
                f"Expected a width, heads and a head size of at least 1, but got embed_dim={embed_dim}, "
                f"num_heads={num_heads}, head_dim={head_dim}."
            )
        super().__init__(embed_dim, 1, dropout, bias, kdim=kdim, vdim=vdim, batch_first=batch_first)
        inner = num_heads * head_dim
        self.num_heads, self.head_dim = num_heads, head_dim
        shapes: dict[str, tuple[int, ...]]
        if (self.kdim, self.vdim) == (embed_dim, embed_dim):
            shapes = {"in_proj_weight": (3 * inner, embed_dim)}
        else:
            widths = {"q": embed_dim, "k": self.kdim, "v": self.vdim}
            shapes = {f"{name}_proj_weight": (inner, width) for name, width in widths.items()}
        shapes |= {"in_proj_bias": (3 * inner,)} if bias else {}
        for name in list(self._parameters):
            shape = shapes.get(name)
            self.register_parameter(name, None if shape is None else nn.Parameter(torch.empty(shape)))
        self.out_proj = nn.Linear(inner, embed_dim, bias)  # type: ignore[assignment]
        self._reset_parameters()

    @property
    def _qkv_same_embed_dim(self) -> bool:
        """Always False: PyTorch's encoder layers use a kernel for the whole layer otherwise, without a head size."""
        return False

    @_qkv_same_embed_dim.setter
    def _qkv_same_embed_dim(self, value: bool) -> None:
        """Ignore values from a constructor or an old file."""

    def _reset_parameters(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("proj_bias") or name.endswith("proj.bias"):
                nn.init.zeros_(parameter)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, as `nn.MultiheadAttention` does.

        Args:
            query: Queries `(N, L, E)`, `(L, N, E)` or `(L, E)`.
            key: Keys `(N, S, kdim)`, and so on.
            value: Values `(N, S, vdim)`, and so on.
            key_padding_mask: Mask `(N, S)` or `(S,)`: true for ignored keys, or an addend to scores.
            need_weights: Whether to return the weights.
            attn_mask: Mask `(L, S)` or `(N * heads, L, S)`: true for keys hidden from a query, or an addend to scores.
            average_attn_weights: Whether weights are means over the present heads.
            is_causal: Hint that `attn_mask` is causal.

        Returns:
            Output, in the query's shape, and weights `(N, L, S)`, `(N, heads, L, S)`, without N, or None.

        Raises:
            RuntimeError: If `is_causal` comes without a mask.
        """
        if is_causal and attn_mask is None:
            raise RuntimeError("Expected attn_mask along with is_causal, but got none. Pass the causal mask.")
        batched = query.dim() == 3
        given = (query,) if query is key and key is value else (query, key, value)
        q, k, v = self._heads([self._batch_first(x, batched) for x in given])
        causal = is_causal and key_padding_mask is None and not need_weights  # the kernel needs no mask then
        mask = None if causal else self._bias_of(attn_mask, key_padding_mask, q)
        dropout = self.dropout if self.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            scores = q * self.head_dim**-0.5 @ k.transpose(-2, -1)
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            out = weights @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _heads(self, given: list[Tensor]) -> list[Tensor]:
        """Project `(N, L, E)` and split into heads, `(N, heads, L, head_dim)`, with the extra keys and values."""
        whole, bias = self.in_proj_weight, self.in_proj_bias
        if len(given) == 1 and whole is not None:
            made = list(F.linear(given[0], whole, bias).chunk(3, -1))
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if whole is None else whole.chunk(3)
            biases = (None, None, None) if bias is None else bias.chunk(3)
            inputs = given * 3 if len(given) == 1 else given
            made = [F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]
        for number, extra in ((1, self.bias_k), (2, self.bias_v)):
            if extra is not None:
                made[number] = torch.cat([made[number], extra.expand(len(made[number]), -1, -1)], 1)
        cut = [torch.unflatten(x, -1, (-1, self.head_dim)).transpose(1, 2) for x in made]
        return [cut[0], *(F.pad(x, (0, 0, 0, 1)) if self.add_zero_attn else x for x in cut[1:])]

    def _bias_of(self, attn_mask: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
        """Return the addend to scores, `(N or 1, heads or 1, L or 1, S)`."""
        masks = []
        if attn_mask is not None:
            masks.append(torch.unflatten(attn_mask, 0, (len(q), -1)) if attn_mask.dim() == 3 else attn_mask[None, None])
        if padding is not None:
            masks.append(padding.reshape(len(q), 1, 1, -1))
        if not masks:
            return None
        added = [q.new_zeros(m.shape).masked_fill(m, -torch.inf) if m.dtype == torch.bool else m.to(q) for m in masks]
        bias = added[0] if len(added) == 1 else added[0] + added[1]
        return F.pad(bias, (0, (self.bias_k is not None) + self.add_zero_attn))
