"""A user's own networks and their makers, for a command line with class paths."""

from __future__ import annotations

from torch import nn


class Takes(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()


def no_network() -> int:
    return 3
