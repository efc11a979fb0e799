"""Small networks with PyTorch's own attention, and inputs."""

from __future__ import annotations

from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from prunerecover.model.batches import ModelInputs

NUMBERS = torch.Generator().manual_seed(1)
IMAGES = torch.randn(2, 3, 16, 16, generator=NUMBERS)
TOKENS = torch.randn(2, 6, 16, generator=NUMBERS)
OTHERS = torch.randn(2, 5, 12, generator=NUMBERS)
PADDING = torch.arange(6) >= torch.tensor([[4], [6]])


def seeded(network: nn.Module, std: float = 0.3) -> nn.Module:
    """Return the network with all weights drawn, including initial zeros."""
    torch.manual_seed(0)
    for parameter in network.parameters():
        parameter.data.normal_(std=std)
    return network.eval()


def vision_transformer() -> nn.Module:
    return seeded(torchvision.models.VisionTransformer(16, 4, 2, 4, 16, 32, num_classes=3))


def encoder(batch_first: bool = True, **settings: Any) -> nn.Module:
    """An encoder of PyTorch.

    Args:
        batch_first: Whether tokens are `(N, L, E)`.
        **settings: Settings of the layers.
    """
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=batch_first, **settings)
    return seeded(nn.TransformerEncoder(layer, 2))


def padded() -> ModelInputs:
    """Return tokens and a padding mask."""
    return ModelInputs((TOKENS,), {"src_key_padding_mask": PADDING})


def decoder() -> nn.Module:
    return seeded(nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 24, batch_first=True), 2))


def targets() -> ModelInputs:
    """Return causal targets, and tokens to attend to."""
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    return ModelInputs((TOKENS, TOKENS.flip(1)), {"tgt_mask": mask, "tgt_is_causal": True})


class Across(nn.Module):
    """Attention to tokens of another width, with all optional parts of `nn.MultiheadAttention`."""

    def __init__(self) -> None:
        super().__init__()
        extras = {"add_bias_kv": True, "add_zero_attn": True, "kdim": 12, "vdim": 12}
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True, bias=False, **extras)
        self.last = nn.Linear(16, 3)

    def forward(self, tokens: Tensor, others: Tensor) -> Tensor:
        """Classify the mean token; weights of the attention are computed, and not read."""
        return self.last(self.attention(tokens, others, others)[0].mean(1))


def across() -> nn.Module:
    return seeded(Across())


def both() -> ModelInputs:
    return ModelInputs((TOKENS, OTHERS))
