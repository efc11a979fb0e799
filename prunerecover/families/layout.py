"""The vocabulary of a family description: blocks, their residual branches, and their feed-forward linears.

A description is made anew from the live model each time it is needed, so it always tells the present structure: a
branch that was removed is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from prunerecover.model.replacements import SlopeBias


@dataclass(frozen=True)
class Branch:
    """One residual branch of a block: x + followers(path(norm(x))).

    Attributes:
        path: The module whose output reaches the residual stream; a replacement goes here.
        followers: Modules that serve only this branch (norm before it, LayerScale, DropPath): dropped with it.
        norm: The norm whose output `path` reads, if it serves only this branch (pre-norm families).
        returns: How many values the module at `path` returns.
        dim: Width of the residual stream, C. What is fitted in the branch's place works on the last dimension, so
            states are `(N, ..., C)`; with channels elsewhere nothing can be fitted (`replace="zero"`).
        reads: The norm whose output `path` reads, where another branch reads it, too (parallel branches).
        beside: Of the second of two parallel branches: the module whose output the first one adds.
        scale: What the branch's output is multiplied by before it is added (Granite's residual multiplier).
    """

    kind: Literal["attention", "mlp"]
    path: str
    followers: tuple[str, ...]
    norm: str | None
    returns: int
    dim: int
    reads: str | None = None
    beside: str | None = None
    scale: float = 1.0

    @property
    def then(self) -> tuple[str, ...]:
        """The followers that come after `path`."""
        return tuple(path for path in self.followers if path != self.norm)

    @property
    def last(self) -> str:
        """The module whose output is added to the residual stream."""
        return self.then[-1] if self.then else self.path

    @property
    def stream(self) -> str:
        """The module whose input is the residual stream: the norm of pre-norm families, else the branch itself."""
        return self.norm or self.reads or self.path

    @property
    def before(self) -> tuple[str, ...]:
        """What tells the residual stream that the branch adds to: see `state_before`."""
        return (self.stream,) if self.beside is None else (self.stream, self.beside)

    def state_before(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Return the residual stream before the branch is added, the first of two parallel branches included.

        Args:
            seen: Inputs and outputs of the modules in `before`, as `<path>.in` and `<path>.out`, `(N, ..., C)`.
        """
        state = seen[f"{self.stream}.in"]
        return state if self.beside is None else state + self.scale * seen[f"{self.beside}.out"]

    def state_after(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Return the residual stream with the branch added; `seen` also holds what the module `last` does."""
        return self.state_before(seen) + self.scale * seen[f"{self.last}.out"]


@dataclass(frozen=True)
class FeedForward:
    """A two-linear feed-forward whose activation can be removed: second(activation(first(x))).

    Attributes:
        first: Path of the linear C -> hidden.
        activation: Path of the activation module: the unit's name.
        second: Path of the linear hidden -> C.
        between: Paths of dropouts between the linears, dropped when the linears merge.
        norm: Path of the norm that feeds `first` and nothing else, or None.
        scale: Path of the LayerScale right after `second`, or None.
        state: "nonlinear" while the activation is there, "linear" once it is gone, "merged" once the linears are one.
    """

    first: str
    activation: str
    second: str
    between: tuple[str, ...] = ()
    norm: str | None = None
    scale: str | None = None
    state: Literal["nonlinear", "linear", "merged"] = "nonlinear"


def feed_forward_state(activation: nn.Module, second: nn.Module) -> Literal["nonlinear", "linear", "merged"]:
    """Read `FeedForward.state` off the modules themselves."""
    if isinstance(second, nn.Identity):
        return "merged"
    return "linear" if isinstance(activation, nn.Identity | SlopeBias) else "nonlinear"


@dataclass(frozen=True)
class Block:
    """One residual block; what has been removed from it already is None.

    Attributes:
        no_activation: Why `feed_forward` is None though the block has an MLP; empty otherwise.
    """

    path: str
    attention: Branch | None
    mlp: Branch | None
    feed_forward: FeedForward | None
    no_activation: str = ""


@dataclass(frozen=True)
class Layout:
    """How a model is built.

    Attributes:
        family: Name of the family, as in error messages: "timm VisionTransformer", "transformers Llama", ...
        container: Path of the ModuleList or Sequential that holds the blocks.
        blocks: In order of depth.
        depth_entries: Entries of a transformers config that say how many blocks there are.
    """

    family: str
    container: str
    blocks: tuple[Block, ...]
    depth_entries: tuple[str, ...] = ("num_hidden_layers",)

    def branch(self, path: str) -> Branch | None:
        """The present branch whose module is at `path`."""
        branches = (b for block in self.blocks for b in (block.attention, block.mlp))
        return next((b for b in branches if b is not None and b.path == path), None)

    def feed_forward(self, activation: str) -> FeedForward | None:
        """The feed-forward whose activation is at the path `activation`."""
        forwards = (block.feed_forward for block in self.blocks)
        return next((f for f in forwards if f is not None and f.activation == activation), None)

    def block_of(self, path: str) -> int:
        """Index of the block that holds the module at `path`.

        Raises:
            ValueError: If no block does.
        """
        for index, block in enumerate(self.blocks):
            if path == block.path or path.startswith(block.path + "."):
                return index
        raise ValueError(f"Expected a path inside one of {len(self.blocks)} blocks, but got '{path}'.")
