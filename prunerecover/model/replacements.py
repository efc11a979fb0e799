"""Replacements: small modules in place of removed units.

A replacement takes the call of the replaced module (any keyword arguments) and returns the same form: a tensor, or a
tuple of the tensor and None values, as in transformers' attention modules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Replacement(nn.Module):
    """Base class: returns `compute(x)`, in a tuple of `returns` elements unless `returns` is 1.

    Args:
        returns: Number of values returned by the replaced module: 1 is a tensor, 0 a tuple of one.
    """

    def __init__(self, returns: int = 1) -> None:
        super().__init__()
        self.returns = returns

    def compute(self, x: Tensor) -> Tensor:
        """Map the input of the replaced module, `(..., C)`, to the output of the replacement."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor | None, ...]:
        """Answer the call of the replaced module."""
        out = self.compute(args[0] if args else next(iter(kwargs.values())))
        return out if self.returns == 1 else (out, *[None] * (self.returns - 1))

    def extra_repr(self) -> str:
        """Text of `print(model)`."""
        return "" if self.returns == 1 else f"returns={self.returns}"


def carry_attributes(old: nn.Module, new: nn.Module) -> None:
    """Copy the plain attributes of a replaced module to the replacement, for code around that reads them.

    Examples are the `f` and `i` by which ultralytics' models route tensors, and the attention types of transformers'
    blocks. Tensors without entries take the place of parameters, for code that asks for their dtype or device (T5's).

    >>> conv, stand_in = nn.Conv2d(2, 3, 1), PassThrough()
    >>> carry_attributes(conv, stand_in)
    >>> stand_in.out_channels
    3
    """
    for name, value in vars(old).items():
        if name not in vars(new) and is_plain(value):
            setattr(new, name, value)
    for name, parameter in old._parameters.items():
        if not hasattr(new, name):
            new.register_buffer(name, None if parameter is None else _without_entries(parameter), persistent=False)


def _without_entries(tensor: Tensor) -> Tensor:
    """Return an empty tensor of the same dtype, never on meta: a meta buffer would wait for values from a file."""
    return torch.empty(0, dtype=tensor.dtype, device="cpu" if tensor.is_meta else tensor.device)


def is_plain(value: Any) -> bool:
    """Whether a value is None, a number, a word, or a list or tuple of these."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


class Nothing(Replacement):
    """Replacement of a removed residual branch: adds zero.

    The zero is a scalar that broadcasts: the addition costs no multiplication and hardly any memory.

    >>> Nothing()(torch.ones(2, 3, dtype=torch.half))
    tensor(0., dtype=torch.float16)
    """

    def compute(self, x: Tensor) -> Tensor:
        """Return a scalar zero of x's dtype and device."""
        return x.new_full((), 0.0)  # coremltools refuses new_zeros without dimensions


class PassThrough(Replacement):
    """Replacement that returns its input: "identity in the branch", as published code removes attention."""

    def compute(self, x: Tensor) -> Tensor:
        """Return x."""
        return x


class Copy(Replacement):
    """Replacement by a copy of the input, for readers that overwrite the input."""

    def compute(self, x: Tensor) -> Tensor:
        """Return a copy of x."""
        return x.clone()


class Zeros(Replacement):
    """Replacement that returns zeros in the input's shape, for an in-place sum.

    >>> Zeros()(torch.ones(2)).tolist()
    [0.0, 0.0]
    """

    def compute(self, x: Tensor) -> Tensor:
        """Return zeros like x."""
        return torch.zeros_like(x)


class One(Replacement):
    """Replacement that returns a scalar one, neutral in a product.

    >>> One()(torch.ones(2, 3)).item()
    1.0
    """

    def compute(self, x: Tensor) -> Tensor:
        """Return a scalar one of x's dtype and device."""
        return x.new_full((), 1.0)


class Empty(Replacement):
    """Replacement without entries along a dimension, neutral in a concatenation.

    Args:
        dim: Number of the dimension.

    >>> Empty(1)(torch.ones(2, 3)).shape
    torch.Size([2, 0])
    """

    def __init__(self, dim: int, returns: int = 1) -> None:
        super().__init__(returns)
        self.dim = dim

    def compute(self, x: Tensor) -> Tensor:
        """Return x without entries along the dimension."""
        return x.narrow(self.dim, 0, 0)


class Pool(Replacement):
    """Replacement of a strided convolution by averages over the same windows, channel by channel.

    Args:
        kernel: Size of the window, along each of 1 to 3 spatial dimensions.
        stride: Stride along each dimension.
        padding: Padding along each dimension, left out of the averages.

    >>> Pool((2, 2), (2, 2), (0, 0))(torch.ones(1, 3, 4, 4)).shape
    torch.Size([1, 3, 2, 2])
    """

    def __init__(self, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]) -> None:
        super().__init__()
        self.window = kernel, stride, padding

    def compute(self, x: Tensor) -> Tensor:
        """Average `(N, C, ...)`."""
        pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(self.window[0]) - 1]
        return pool(x, *self.window, count_include_pad=False)

    def extra_repr(self) -> str:
        """Text of `print(model)`."""
        return f"kernel_size={self.window[0]}, stride={self.window[1]}, padding={self.window[2]}"


def replacement_for(
    leaves: str, returns: int = 1, dim: int = 0, window: tuple[tuple[int, ...], ...] = (), channels: int = 0
) -> nn.Module:
    """Return the replacement of a module; arguments as the fields of `StandIn`."""
    if leaves == "slope_bias":
        return SlopeBias(channels, dim)
    if leaves == "affine":
        return Affine(channels, returns, dim)
    if leaves in ("constant", "constants"):
        return Constant(channels, returns, dim, in_shape=leaves == "constants")
    if leaves == "empty":
        return Empty(dim, returns)
    if leaves == "pool":
        return Pool(*window)
    plain = {"identity": PassThrough, "copy": Copy, "zero": Nothing, "zeros": Zeros, "one": One}
    return plain[leaves](returns)


class Affine(Replacement):
    """A linear map of channels fitted on calibration data: y = W x + b.

    Args:
        channels: Number of channels, C.
        returns: Number of values returned by the replaced module.
        dim: Dimension of the channels: -1, `(..., C)`, or 1, `(N, C, ...)` with up to three more.

    >>> Affine(3, dim=1)(torch.ones(2, 3, 4, 4)).shape
    torch.Size([2, 3, 4, 4])
    """

    def __init__(self, channels: int, returns: int = 1, dim: int = -1) -> None:
        super().__init__(returns)
        self.dim = dim
        self.weight = nn.Parameter(torch.eye(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def compute(self, x: Tensor) -> Tensor:
        """Apply the map."""
        if self.dim == -1 or x.ndim == 2:
            return F.linear(x, self.weight, self.bias)
        convolve = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.ndim]
        return convolve(x, self.weight.view(*self.weight.shape, *[1] * (x.ndim - 2)), self.bias)


class Constant(Replacement):
    """The mean output of a removed unit, independent of the input; further arguments as of `Affine`.

    Args:
        in_shape: Whether to return the input's shape instead of a shape that broadcasts.

    >>> Constant(3, dim=1)(torch.ones(2, 3, 4, 4)).shape
    torch.Size([3, 1, 1])
    """

    def __init__(self, channels: int, returns: int = 1, dim: int = -1, *, in_shape: bool = False) -> None:
        super().__init__(returns)
        self.dim, self.in_shape = dim, in_shape
        self.bias = nn.Parameter(torch.zeros(channels))

    def compute(self, x: Tensor) -> Tensor:
        """Return the constant."""
        bias = self.bias if self.dim == -1 else self.bias.view(-1, *[1] * (x.ndim - 2))
        return bias.expand(x.shape).clone() if self.in_shape else bias


class SlopeBias(nn.Module):
    """A linearised activation or layer: y = slope * x + bias per channel; arguments as of `Affine`.

    Two linears with only a `SlopeBias` between are one linear: see `merge`.
    """

    def __init__(self, channels: int, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim
        self.slope = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift each channel."""
        shape = (-1, *[1] * (x.ndim - 2)) if self.dim == 1 else (-1,)
        return torch.addcmul(self.bias.view(shape), x, self.slope.view(shape))


class ChannelMap(nn.Module):
    """A shortcut that keeps every `stride`-th position of a map and places each channel in the output.

    Output channels without an input channel are zero. Channels are selected, not multiplied: the result is exact and
    counts no MACs.

    Args:
        in_channels: Channels of the input, `(..., C, H, W)`.
        out_channels: Channels of the output.
        stride: Stride along height and width.
        first: Output channel of the input's first channel; the further channels follow.
        device: Device of the weight.
        dtype: Dtype of the weight, independent of the input's.

    Attributes:
        weight: Buffer `(out, in, 1, 1)`: 1 where an input channel reaches an output channel, at most one per row.

    >>> ChannelMap(1, 3, first=1)(torch.ones(1, 1, 1, 1)).flatten().tolist()
    [0.0, 1.0, 0.0]
    """

    weight: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int = 1,
        first: int = 0,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.stride = stride
        ones = torch.eye(in_channels, device=device, dtype=dtype)
        padded = F.pad(ones, (0, 0, first, out_channels - in_channels - first))
        self.register_buffer("weight", padded[:, :, None, None])

    def forward(self, x: Tensor) -> Tensor:
        """Map `(..., C, H, W)` to the output's channels; the row of a removed input channel is zero."""
        reached = self.weight.flatten(1) != 0
        chosen = x[..., :: self.stride, :: self.stride].index_select(-3, reached.int().argmax(1))
        return torch.where(reached.any(1)[:, None, None], chosen, chosen.new_full((), 0.0))

    def extra_repr(self) -> str:
        """Text of `print(model)`."""
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, stride={self.stride}"
