"""Plain handwritten networks: sequence-first encoders, sounds, graphs, restorers, diffusion."""

from __future__ import annotations

from functools import partial

import torch
from torch import Generator, Tensor

from benchmarks.zoo.networks.network import (
    CLASSES,
    SAMPLES,
    Draw,
    Network,
    below,
    images,
    labelled,
    named,
    normal,
    squares,
)
from benchmarks.zoo.networks.plain import diffusion, pictures, points, sequences


def networks() -> list[Network]:
    """Return the suite."""
    words, features = partial(below, sequences.VOCABULARY), normal(12, sequences.FEATURES)
    pairs = named(source=words(12), target=words(7))
    graphs = named(nodes=normal(10, sequences.FEATURES), adjacency=_edges)
    visits = named(user=words(6), item=words(), numbers=normal(5))
    rays = named(places=_places, directions=normal(16, 3))
    noised: dict[str, Draw] = {"sample": normal(4, 16, 16), "step": below(1000)}
    told, kinds = named(**noised, text=normal(7, diffusion.TEXT)), named(**noised, kind=below(CLASSES))
    return [
        Network("sequence-first-encoder", sequences.SequenceFirst, labelled(features)),
        Network("sequence-first-transformer", sequences.Translator, pairs, squares),
        Network("sequence-first-vision-tower", sequences.VisionTower, images(32)),
        Network("tcn", sequences.TemporalConvolutions, labelled(features)),
        Network("wavenet", sequences.WaveNet, named(wave=normal(1, 128)), squares),
        Network("crnn", sequences.ConvolutionsThenLstm, images(16, 32, channels=1)),
        Network("sequence-to-sequence-gru", sequences.SequenceToSequence, pairs, squares),
        Network("gcn", partial(points.GraphNetwork, attention=False), graphs, squares),
        Network("graph-attention", partial(points.GraphNetwork, attention=True), graphs, squares),
        Network("pointnet", points.PointNet, labelled(normal(3, 32))),
        Network("two-tower-recommender", points.TwoTowers, visits, squares),
        Network("radiance-field", points.RadianceField, rays, squares),
        Network("unet-group-norm", pictures.UNet, images(16), squares),
        Network("unet-conditioned", diffusion.ConditionedUNet, told, squares),
        Network("dit", diffusion.DiffusionTransformer, kinds, squares),
        Network("autoencoder-kl", diffusion.Autoencoder, images(16), squares),
        Network("residual-super-resolution", pictures.SuperResolution, images(16), squares),
        Network("dense-residual-super-resolution", pictures.DenseSuperResolution, images(16), squares),
        Network("patch-discriminator", pictures.Discriminator, images(32), squares),
        Network("style-modulated-generator", pictures.ModulatedGenerator, named(latent=normal(32)), squares),
    ]


def _edges(generator: Generator) -> Tensor:
    edges = torch.rand(SAMPLES, 10, 10, generator=generator) < 0.3
    return (edges | edges.mT | torch.eye(10, dtype=torch.bool)).float()


def _places(generator: Generator) -> Tensor:
    return torch.rand(SAMPLES, 16, 3, generator=generator)
