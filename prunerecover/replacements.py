"""The small modules that surgery leaves in the place of what it removes.

Each takes the call of the module it replaces (any keyword arguments) and answers in the same form: a tensor, or a tuple
whose first element is the tensor and whose others are None, as transformers' attention modules do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Replacement(nn.Module):
    """Base: answers with `compute(x)`, in a tuple of `returns` elements when `returns` > 1.

    Args:
        returns: How many values the replaced module returned.
    """

    def __init__(self, returns: int = 1) -> None:
        super().__init__()
        self.returns = returns

    def compute(self, x: Tensor) -> Tensor:
        """Map the input of the replaced module, `(..., C)`, to its stand-in output."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor | None, ...]:
        """Answer the call of the replaced module."""
        out = self.compute(args[0] if args else next(iter(kwargs.values())))
        return out if self.returns == 1 else (out, *[None] * (self.returns - 1))

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return "" if self.returns == 1 else f"returns={self.returns}"


class Nothing(Replacement):
    """A removed residual branch: adds zero.

    The zero is a scalar that broadcasts, so the addition it feeds costs no multiplication and hardly any memory.

    >>> Nothing()(torch.ones(2, 3)).item()
    0.0
    """

    def compute(self, x: Tensor) -> Tensor:
        """Return a scalar zero of x's dtype and device."""
        return x.new_zeros(())


class PassThrough(Replacement):
    """Hands its input on: "identity in the branch", as the published code removes attention."""

    def compute(self, x: Tensor) -> Tensor:
        """Return x."""
        return x


class Affine(Replacement):
    """A linear map fitted on calibration data, `(..., C) -> (..., C)`: y = W x + b.

    Args:
        dim: C.
        returns: How many values the replaced module returned.
    """

    def __init__(self, dim: int, returns: int = 1) -> None:
        super().__init__(returns)
        self.weight = nn.Parameter(torch.eye(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def compute(self, x: Tensor) -> Tensor:
        """Apply the map."""
        return nn.functional.linear(x, self.weight, self.bias)


class Constant(Replacement):
    """The mean output of what was removed, `(C,)`, independent of the input."""

    def __init__(self, dim: int, returns: int = 1) -> None:
        super().__init__(returns)
        self.bias = nn.Parameter(torch.zeros(dim))

    def compute(self, x: Tensor) -> Tensor:
        """Return the constant."""
        return self.bias


class SlopeBias(nn.Module):
    """A linearised activation, `(..., C)`: y = slope * x + bias per channel.

    Two linears with only this between them are one linear: see `merge`.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift each channel."""
        return torch.addcmul(self.bias, x, self.slope)
