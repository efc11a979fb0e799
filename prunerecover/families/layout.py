"""Vocabulary of a family description: blocks, residual branches, and feed-forward linears.

Each description is made anew from the live model and shows the present structure: a removed branch is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from prunerecover.model.replacements import SlopeBias


@dataclass(frozen=True)
class Branch:
    """One residual branch of a block: x + followers(path(norm(x))).

    Attributes:
        kind: Kind of the unit, "attention" or "mlp".
        path: Path of the module with output to the residual stream; a replacement goes here.
        followers: Paths of modules for this branch alone (norm before the branch, LayerScale, DropPath), removed with
            the branch.
        norm: Path of a norm for `path` alone (pre-norm families), or None.
        returns: Number of values returned by the module at `path`.
        dim: Width of the residual stream, C. Fitted replacements work on the last dimension of states `(N, ..., C)`;
            with channels elsewhere only `replace="zero"` is possible.
        reads: Path of a norm shared by `path` and another branch (parallel branches), or None.
        beside: Path of the module with the output of the first of two parallel branches; set for the second branch.
        scale: Factor on the branch's output before the addition (Granite's residual multiplier).
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
        """Paths of the followers after `path`."""
        return tuple(path for path in self.followers if path != self.norm)

    @property
    def last(self) -> str:
        """Path of the module with the output for the residual stream."""
        return self.then[-1] if self.then else self.path

    @property
    def stream(self) -> str:
        """Path of the module with the residual stream as input: the norm in pre-norm families, else the branch."""
        return self.norm or self.reads or self.path


@dataclass(frozen=True)
class FeedForward:
    """A two-linear feed-forward with a removable activation: second(activation(first(x))).

    Attributes:
        first: Path of the linear C -> hidden.
        activation: Path of the activation module: the unit's name.
        second: Path of the linear hidden -> C.
        between: Paths of dropouts between the linears, removed when the linears merge.
        norm: Path of the norm that feeds `first` alone, or None.
        scale: Path of the LayerScale right after `second`, or None.
        state: State of the activation: "nonlinear" if present, "linear" once removed, "merged" once the linears are
            merged.
    """

    first: str
    activation: str
    second: str
    between: tuple[str, ...] = ()
    norm: str | None = None
    scale: str | None = None
    state: Literal["nonlinear", "linear", "merged"] = "nonlinear"


def feed_forward_state(activation: nn.Module, second: nn.Module) -> Literal["nonlinear", "linear", "merged"]:
    """Read `FeedForward.state` off the modules."""
    if isinstance(second, nn.Identity):
        return "merged"
    return "linear" if isinstance(activation, nn.Identity | SlopeBias) else "nonlinear"


@dataclass(frozen=True)
class Block:
    """One residual block; removed parts are None.

    Attributes:
        path: Path of the block.
        attention: Attention branch.
        mlp: MLP branch.
        feed_forward: Linears and activation of the MLP, if the linears can merge.
        no_activation: Reason for the absence of `feed_forward` in a block with an MLP; empty otherwise.
        stays: Reason why the block cannot go as a whole; empty otherwise.
    """

    path: str
    attention: Branch | None
    mlp: Branch | None
    feed_forward: FeedForward | None
    no_activation: str = ""
    stays: str = ""


@dataclass(frozen=True)
class Layout:
    """Structure of a model.

    Attributes:
        family: Name of the family, as in error messages: "timm VisionTransformer", "transformers Llama", ...
        container: Path of the ModuleList or Sequential of the blocks.
        blocks: Blocks in order of depth.
        depth_entries: Entries of a transformers config with the number of blocks.
    """

    family: str
    container: str
    blocks: tuple[Block, ...]
    depth_entries: tuple[str, ...] = ("num_hidden_layers",)

    def branch(self, path: str) -> Branch | None:
        """Return the present branch with its module at `path`, or None."""
        branches = (b for block in self.blocks for b in (block.attention, block.mlp))
        return next((b for b in branches if b is not None and b.path == path), None)

    def feed_forward(self, activation: str) -> FeedForward | None:
        """Return the feed-forward with its activation at the path `activation`, or None."""
        forwards = (block.feed_forward for block in self.blocks)
        return next((f for f in forwards if f is not None and f.activation == activation), None)

    def block_of(self, path: str) -> int:
        """Return the index of the block around the module at `path`.

        Raises:
            ValueError: If no block holds the path.
        """
        for index, block in enumerate(self.blocks):
            if path == block.path or path.startswith(block.path + "."):
                return index
        raise ValueError(f"Expected a path inside one of {len(self.blocks)} blocks, but got '{path}'.")
