"""timm's VisionTransformer: ViT, DeiT and distilled DeiT, with or without LayerScale, DropPath and qk-norm.

A block is x + drop_path1(ls1(attn(norm1(x)))), then the same with mlp. Post-norm (`ResPostBlock`) and parallel blocks
are not covered.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from prunerecover.families.layout import Block, Branch, FeedForward, Layout, feed_forward_state
from prunerecover.model.replacements import Replacement

SUPPORTED = ("timm VisionTransformer",)
BLOCK_CLASS = "Block"
GATED = "its MLP is gated (SwiGLU): two linears multiply, so they cannot become one"

LAYER_GONE = "one of its layers has been removed"


def read(model: nn.Module) -> Layout | None:
    """Describe a timm VisionTransformer; None for another model."""
    names = {cls.__name__ for cls in type(model).__mro__}
    blocks = getattr(model, "blocks", None)
    if "VisionTransformer" not in names or not isinstance(blocks, nn.Sequential):
        return None
    if any(type(block).__name__ != BLOCK_CLASS and not isinstance(block, Replacement) for block in blocks):
        return None
    dim = int(getattr(model, "embed_dim", 0))
    return Layout(SUPPORTED[0], "blocks", tuple(_block(f"blocks.{i}", b, dim) for i, b in enumerate(blocks)))


def _block(path: str, block: nn.Module, dim: int) -> Block:
    if isinstance(block, Replacement):
        return Block(path, None, None, None)
    feed_forward, why = _feed_forward(path, block)
    return Block(path, _branch(path, block, "attn", 1, dim), _branch(path, block, "mlp", 2, dim), feed_forward, why)


def _branch(path: str, block: nn.Module, name: str, number: int, dim: int) -> Branch | None:
    if isinstance(getattr(block, name), Replacement):
        return None
    followers = tuple(f"{path}.{part}{number}" for part in ("norm", "ls", "drop_path"))
    kind: Literal["attention", "mlp"] = "attention" if name == "attn" else "mlp"
    return Branch(kind, f"{path}.{name}", followers, f"{path}.norm{number}", returns=1, dim=dim)


def _feed_forward(path: str, block: Any) -> tuple[FeedForward | None, str]:
    mlp = block.mlp
    if isinstance(mlp, Replacement):
        return None, ""
    if type(mlp).__name__ != "Mlp":
        return None, GATED
    if not isinstance(mlp.norm, nn.Identity):
        return None, "there is a norm between its two linears, so they cannot become one"
    if any(isinstance(part, Replacement) for part in (mlp.fc1, mlp.act, mlp.fc2)):
        return None, LAYER_GONE
    scale = f"{path}.ls2" if hasattr(block.ls2, "gamma") else None
    parts = {name: f"{path}.mlp.{name}" for name in ("fc1", "act", "fc2", "drop1")}
    state = feed_forward_state(mlp.act, mlp.fc2)
    return FeedForward(parts["fc1"], parts["act"], parts["fc2"], (parts["drop1"],), f"{path}.norm2", scale, state), ""
