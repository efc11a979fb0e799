"""Small vision transformer for scikit-learn's digits: real data without a download."""

from __future__ import annotations

from typing import Any

import torch

from prunerecover.recipes.tasks.image_classifier import ImageClassifier


class DigitsClassifier(ImageClassifier):
    """Small timm ViT for the digits: 16 patches of 2 x 2 pixels.

    The position embeddings start 25 times larger than timm's. The place of a patch tells more about a digit than its
    content, and from timm's 0.02 a short training spends most of its steps on learning positions.

    Args:
        depth: Number of blocks.
        embed_dim: Channels of the tokens.
        num_heads: Number of attention heads.
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of parameters with two or more dimensions.
        warmup_epochs: Length of the linear warmup, in epochs.
    """

    POSITION_STD = 0.5

    def __init__(
        self,
        depth: int = 6,
        embed_dim: int = 64,
        num_heads: int = 4,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.05,
        warmup_epochs: float = 3.0,
    ) -> None:
        super().__init__(
            "vit_tiny_patch16_224",
            num_classes=10,
            model_kwargs=vit_kwargs(depth, embed_dim, num_heads),
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            warmup_epochs=warmup_epochs,
        )
        torch.nn.init.trunc_normal_(self.model.pos_embed, std=self.POSITION_STD)  # type: ignore[arg-type]


def vit_kwargs(depth: int, embed_dim: int, num_heads: int) -> dict[str, Any]:
    """Return the arguments of any timm ViT for a small network on grey images of 8 x 8 pixels.

    Args:
        depth: Number of blocks.
        embed_dim: Channels of the tokens.
        num_heads: Number of attention heads, a divisor of the channels.
    """
    return {
        "img_size": 8,
        "patch_size": 2,
        "in_chans": 1,
        "embed_dim": embed_dim,
        "depth": depth,
        "num_heads": num_heads,
    }
