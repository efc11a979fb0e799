"""Small networks that are hard to prune, with units coupled in all different ways."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Generator, Tensor, nn

from benchmarks.zoo.networks import hard_convolutions as convolutions
from benchmarks.zoo.networks import hard_others as others
from benchmarks.zoo.networks.hard_convolutions import WIDTH, Classifier, Residual, conv
from benchmarks.zoo.networks.network import CLASSES, MakeBatch, Network, images, squares

N = 8
PICTURES = images(16, samples=N)
Body = Callable[[], nn.Module]
# Body between a stem and a head, and its number of output channels.
BODIES: dict[str, tuple[Body, int]] = {
    "groups": (lambda: nn.Sequential(conv(WIDTH, 64), conv(64, 64, groups=4), conv(64, 64, groups=8)), 64),
    "groups-that-widen": (lambda: nn.Sequential(conv(WIDTH, 96, groups=8), conv(96, 64)), 64),
    "depthwise": (lambda: nn.Sequential(conv(WIDTH, 64), conv(64, 64, groups=64), conv(64, 64, 1)), 64),
    "depthwise-that-widens": (lambda: nn.Sequential(conv(WIDTH, 64, groups=WIDTH), conv(64, 64, 1)), 64),
    "projected-residuals": (lambda: nn.Sequential(Residual(WIDTH, 64, 48), Residual(64, 64, 48)), 64),
    "channel-shuffle": (convolutions.Shuffle, 64),
    "dense-connections": (convolutions.Dense, 96),
    "weight-sharing": (convolutions.Repeated, 64),
    "chunk-and-cat": (convolutions.Chunked, 64),
    "split-in-three": (convolutions.Split, 64),
    "squeeze-excite": (convolutions.SqueezeExcite, 64),
    "glu-of-channels": (convolutions.GatedConvolution, 64),
    "channels-by-index": (convolutions.ByIndex, 64),
    "functional-weights": (convolutions.Functional, 64),
    "norms": (convolutions.Normalised, 64),
}


def networks() -> list[Network]:
    """Return the suite."""
    bodies = [Network(name, partial(_classifier, *body), PICTURES) for name, body in BODIES.items()]
    encoders = {"encoder-norm-first": True, "encoder-norm-last": False}
    return [
        *bodies,
        Network("pixel-shuffle", convolutions.SubPixel, PICTURES, squares),
        Network("unet-transposed", convolutions.UNet, images(16, samples=N), squares),
        Network("flattened-positions", convolutions.Flattened, PICTURES),
        Network("einsum-attention", others.EinsumAttention, _features),
        *(Network(name, partial(others.Encoder, norm_first), _features) for name, norm_first in encoders.items()),
        Network("swiglu", others.SwiGlu, _features),
        Network("grouped-linear", others.GroupedLinear, _features),
        Network("convolutions-and-lstm", others.Recurrent, _features),
        Network("embedding-and-gru", others.Gru, _words),
        Network("tied-tables", others.TiedTables, _next_words),
        Network("embedding-bags", others.Bags, _keywords(categories=True), squares),
        Network("two-inputs", others.TwoInputs, _keywords(categories=False), squares),
        Network("dict-outputs", others.DictOutputs, PICTURES, squares),
        Network("siamese", others.Siamese, _pairs),
        Network("patches-by-unfold", others.Patches, PICTURES),
        Network("causal-gates", others.Causal, _features),
        Network("weight-norm", others.Folded, _features),
    ]


def _classifier(body: Body, width: int) -> nn.Module:
    return Classifier(body(), width)


def _labels(generator: Generator) -> Tensor:
    return torch.randint(0, CLASSES, (N,), generator=generator)


def _features(generator: Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(N, 16, 12, generator=generator), _labels(generator)


def _words(generator: Generator) -> tuple[Tensor, Tensor]:
    return torch.randint(0, others.VOCABULARY, (N, 16), generator=generator), _labels(generator)


def _next_words(generator: Generator) -> tuple[Tensor, Tensor]:
    tokens = _words(generator)[0]
    return tokens, tokens.roll(-1, 1)


def _pairs(generator: Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(N, 2, 3, 16, 16, generator=generator), _labels(generator)


def _keywords(categories: bool) -> MakeBatch:
    """Return a maker of two named inputs: numbers with bags of categories, or with pictures."""

    def batch(generator: Generator) -> dict[str, Tensor]:
        numbers = torch.randn(N, 8, generator=generator)
        if categories:
            return {
                "categories": torch.randint(0, others.VOCABULARY, (N, 2, 5), generator=generator),
                "numbers": numbers,
            }
        return {"image": torch.randn(N, 3, 16, 16, generator=generator), "numbers": numbers}

    return batch
