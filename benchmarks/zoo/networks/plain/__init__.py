"""Plain handwritten networks: sequence-first encoders, sounds, graphs, restorers, diffusion."""

from __future__ import annotations

from functools import partial

import torch
from torch import Generator, Tensor

from benchmarks.zoo.networks.network import CLASSES, MakeBatch, Network, images, squares
from benchmarks.zoo.networks.plain import diffusion, pictures, points, sequences

N = 4


def networks() -> list[Network]:
    """Return the suite."""
    return [
        Network("sequence-first-encoder", sequences.SequenceFirst, _features),
        Network("sequence-first-transformer", sequences.Translator, _pairs, squares),
        Network("sequence-first-vision-tower", sequences.VisionTower, images(32, samples=N)),
        Network("conformer", sequences.Conformer, _features),
        Network("tcn", sequences.TemporalConvolutions, _features),
        Network("wavenet", sequences.WaveNet, _waves, squares),
        Network("crnn", sequences.ConvolutionsThenLstm, images(16, 32, channels=1, samples=N)),
        Network("sequence-to-sequence-gru", sequences.SequenceToSequence, _pairs, squares),
        Network("gcn", partial(points.GraphNetwork, attention=False), _graphs, squares),
        Network("graph-attention", partial(points.GraphNetwork, attention=True), _graphs, squares),
        Network("pointnet", points.PointNet, _points),
        Network("two-tower-recommender", points.TwoTowers, _visits, squares),
        Network("radiance-field", points.RadianceField, _rays, squares),
        Network("unet-group-norm", pictures.UNet, images(16, samples=N), squares),
        Network("unet-conditioned", diffusion.ConditionedUNet, _noised(16, 4, told=True), squares),
        Network("dit", diffusion.DiffusionTransformer, _noised(16, 4, told=False), squares),
        Network("autoencoder-kl", diffusion.Autoencoder, images(16, samples=N), squares),
        Network("swin-restorer", pictures.SwinRestorer, images(16, samples=N), squares),
        Network("residual-super-resolution", pictures.SuperResolution, images(16, samples=N), squares),
        Network("dense-residual-super-resolution", pictures.DenseSuperResolution, images(16, samples=N), squares),
        Network("squeeze-excite-resnet", pictures.SqueezeResNet, images(16, samples=N)),
        Network("channel-and-spatial-attention", partial(pictures.SqueezeResNet, spatial=True), images(16, samples=N)),
        Network("patch-discriminator", pictures.Discriminator, images(32, samples=N), squares),
        Network("style-modulated-generator", pictures.ModulatedGenerator, _latents, squares),
        Network("masked-image-mixer", pictures.MixerWithGates, images(16, samples=N)),
    ]


def _labels(generator: Generator) -> Tensor:
    return torch.randint(0, CLASSES, (N,), generator=generator)


def _features(generator: Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(N, 12, sequences.FEATURES, generator=generator), _labels(generator)


def _pairs(generator: Generator) -> dict[str, Tensor]:
    return {
        "source": torch.randint(0, sequences.VOCABULARY, (N, 12), generator=generator),
        "target": torch.randint(0, sequences.VOCABULARY, (N, 7), generator=generator),
    }


def _waves(generator: Generator) -> dict[str, Tensor]:
    return {"wave": torch.randn(N, 1, 128, generator=generator)}


def _graphs(generator: Generator) -> dict[str, Tensor]:
    edges = torch.rand(N, 10, 10, generator=generator) < 0.3
    return {
        "nodes": torch.randn(N, 10, sequences.FEATURES, generator=generator),
        "adjacency": (edges | edges.mT | torch.eye(10, dtype=torch.bool)).float(),
    }


def _points(generator: Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(N, 3, 32, generator=generator), _labels(generator)


def _visits(generator: Generator) -> dict[str, Tensor]:
    return {
        "user": torch.randint(0, sequences.VOCABULARY, (N, 6), generator=generator),
        "item": torch.randint(0, sequences.VOCABULARY, (N,), generator=generator),
        "numbers": torch.randn(N, 5, generator=generator),
    }


def _rays(generator: Generator) -> dict[str, Tensor]:
    return {
        "places": torch.rand(N, 16, 3, generator=generator),
        "directions": torch.randn(N, 16, 3, generator=generator),
    }


def _latents(generator: Generator) -> dict[str, Tensor]:
    return {"latent": torch.randn(N, 32, generator=generator)}


def _noised(side: int, channels: int, *, told: bool) -> MakeBatch:
    """Return a maker of noised images with their steps, and states of text or classes."""

    def batch(generator: Generator) -> dict[str, Tensor]:
        drawn = {
            "sample": torch.randn(N, channels, side, side, generator=generator),
            "step": torch.randint(0, 1000, (N,), generator=generator),
        }
        if told:
            return {**drawn, "text": torch.randn(N, 7, diffusion.TEXT, generator=generator)}
        return {**drawn, "kind": _labels(generator)}

    return batch
