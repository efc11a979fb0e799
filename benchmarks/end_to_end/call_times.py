"""What the calls of the docs take, on one thread of a processor: vision transformers, ResNets, segmenters and language.

    PRUNERECOVER_DATA=... python -m benchmarks.end_to_end.call_times

Seconds are those of the processor, so that other work on the machine changes them little; a pass is that of all samples
through the dense network. Stages are those that the progress bar names, each without the stages inside it. Networks
whose accuracy is not asked for, the segmenter's decoder and the decoder of SmolLM2-135M's shape, have random weights,
and random samples: they take as long.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data import cifar
from benchmarks.data.real import data_root, deit_tiny
from benchmarks.data.tiny_imagenet import calibration
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Line, Table, text
from benchmarks.width.cifar_models import load
from prunerecover import Budget, apply_plan, find_sites, plan_depth, plan_width, reconstruct, sensitivity
from prunerecover.cost.latency import stopwatch_for
from prunerecover.display import progress
from prunerecover.display.stages import Stage, Stages
from prunerecover.model.batches import call
from prunerecover.model.copies import deep_copy
from prunerecover.recipes.networks.segmentation_networks import build_segmenter, scores_of
from prunerecover.session.session import Session

SEED = 0
LEAST = 0.05  # of the time: smaller stages are not named
SCENE, CLASSES = (160, 224), 11
VOCABULARY = 49_152


@dataclass(frozen=True)
class Subject:
    """A network and its calibration samples.

    Attributes:
        network: Dense network.
        batches: Samples, labelled where it is no language model.
        samples: Words for them.
        loss: Loss for widths; None: cross-entropy.
    """

    network: nn.Module
    batches: list[Any]
    samples: str
    loss: Callable[[nn.Module, Any], Tensor] | None = None


@cache
def subject(name: str) -> Subject:
    """Return one of the subjects."""
    torch.manual_seed(SEED)
    if name == "DeiT-Tiny":
        return Subject(deit_tiny(), list(calibration(64)), "64 images of 224 pixels")
    if name == "ResNet-56":
        return Subject(load(name), cifar.batches(256, SEED), "256 images of 32 pixels")
    if name == "DeiT-Tiny segmenter":
        network = build_segmenter(f"local-dir:{data_root() / 'models/deit_tiny_patch16_224'}", CLASSES, True, SCENE, {})
        scenes = [(torch.randn(8, 3, *SCENE), torch.randint(CLASSES, (8, *SCENE))) for _ in range(4)]
        return Subject(network.eval(), scenes, "32 scenes of 160 x 224 pixels", pixel_loss)
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3}
    config = LlamaConfig(vocab_size=VOCABULARY, tie_word_embeddings=True, **shape, **heads)
    texts = [{"input_ids": torch.randint(VOCABULARY, (4, 64))} for _ in range(2)]
    return Subject(LlamaForCausalLM(config).eval(), texts, "8 texts of 64 tokens")


def pixel_loss(network: nn.Module, batch: Any) -> Tensor:
    """Return the cross-entropy of the pixels."""
    images, classes = batch
    return F.cross_entropy(scores_of(network(images), classes.shape[-2:]), classes)


def depth(**how: Any) -> Callable[[Subject], object]:
    """Return the call of `plan_depth`."""
    return lambda one: plan_depth(one.network, batches=one.batches, **how)


def width(**how: Any) -> Callable[[Subject], object]:
    """Return the call of `plan_width`."""
    return lambda one: plan_width(one.network, batches=one.batches, loss=one.loss, **how)


@contextmanager
def reconstructed(one: Subject) -> Iterator[Callable[[Subject], object]]:
    """Yield the call of `reconstruct` for a network that is narrowed before."""
    plan = plan_width(one.network, Budget(macs=0.5), batches=one.batches, replace="zero")
    network = deep_copy(one.network)
    apply_plan(network, plan)
    yield lambda one: reconstruct(network, one.network, plan, one.batches)


SMOLLM2 = "a decoder of SmolLM2-135M's shape"
Call = tuple[str, str, Callable[[Subject], object] | None]
ONE_RUN = 'plan_depth(model, remove={"block": 6}, search="run", importance="block_influence", replace="zero")'
CALLS: list[Call] = [
    ("DeiT-Tiny", "find_sites(model, batches)", lambda one: find_sites(one.network, one.batches)),
    ("DeiT-Tiny", 'plan_depth(model, remove={"attention": 3})', depth(remove={"attention": 3})),
    (SMOLLM2, ONE_RUN, depth(remove={"block": 6}, search="run", importance="block_influence", replace="zero")),
    ("DeiT-Tiny segmenter", "plan_width(model, Budget(macs=0.3))", width(budget=Budget(macs=0.3))),
    ("DeiT-Tiny", "plan_width(model, Budget(macs=0.3))", width(budget=Budget(macs=0.3))),
    ("ResNet-56", "plan_width(model, Budget(macs=0.5))", width(budget=Budget(macs=0.5))),
    ("ResNet-56", "reconstruct(model, dense, plan, batches)", None),
    ("DeiT-Tiny segmenter", 'plan_depth(model, remove={"attention": 2})', depth(remove={"attention": 2})),
    ("DeiT-Tiny", "sensitivity(model)", lambda one: sensitivity(one.network, one.batches)),
    (SMOLLM2, 'plan_depth(model, Budget(params=0.2), kinds="block")', depth(budget=Budget(params=0.2), kinds="block")),
    ("DeiT-Tiny", "plan_depth(model, Budget(macs=0.2))", depth(budget=Budget(macs=0.2))),
]


class Recorder(list[Stage]):
    """Stages that are under way, which adds up the processor seconds of each, without those inside it.

    Args:
        found: Sums by description, which are added to.
    """

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found, self.begun = found, list[list[float]]()

    def append(self, stage: Stage) -> None:
        """Begin a stage."""
        super().append(stage)
        self.begun.append([time.process_time(), 0.0])

    def pop(self, *_: Any) -> Stage:  # type: ignore[override]
        """End the innermost stage."""
        stage = super().pop()
        started, inside = self.begun.pop()
        taken = time.process_time() - started
        self.found[stage.description] += taken - inside  # type: ignore[assignment]
        if self.begun:
            self.begun[-1][1] += taken
        return stage


def measure(number: int) -> dict[str, Any]:
    """Time one call."""
    name, said, run = CALLS[number]
    one, stages = subject(name), Counter[str]()
    dense = dense_seconds(one)
    recorded = mock.patch.object(progress, "Stages", side_effect=lambda: Stages(Recorder(stages)))
    with recorded, reconstructed(one) if run is None else nullcontext(run) as call_it:
        stages.clear()
        started = time.process_time()
        call_it(one)
        seconds = time.process_time() - started
    named = {"network": name, "samples": one.samples, "call": f"`{said}`"}
    spent = {what: taken for what, taken in stages.most_common() if taken >= LEAST * seconds}
    return {**named, "seconds": seconds, "passes": seconds / dense, "stages": spent}


def dense_seconds(one: Subject) -> float:
    """Return the processor seconds of a pass of all samples through the dense network, as a few of them tell."""
    session = Session(one.network, one.batches)
    some = session.first.select(torch.arange(4))
    with session.evaluating():
        each = min(stopwatch_for(session.device)(partial(call, session.model, some)) for _ in range(2)) / 4
    return each * session.samples.n_samples


def stages_of(line: Line) -> str:
    """Return the seconds of each stage."""
    return "; ".join(f"{what} {spent:.0f}" for what, spent in line.first["stages"].items())


BENCHMARK = Benchmark(
    name="call_times",
    doc=__doc__,
    title="What the calls take",
    text="""Processor seconds of one thread, once each. A pass: all samples through the dense network, as a few of them
    tell. Stages: seconds of each that takes a twentieth of the time, without the stages inside it, as the progress bar
    names them. The segmenter's decoder, and all of the language model, have random weights.""",
    measure=measure,
    axes={"number": Axis(tuple(range(len(CALLS))))},
    tables=(
        Table(
            [
                *(text("network"), text("call"), text("samples")),
                text("seconds", "", "{:.0f}"),
                text("passes", "", "{:.0f}"),
                Column("stages, in seconds", stages_of),
            ],
            line=("number",),
        ),
    ),
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
