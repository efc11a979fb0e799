"""Subjects of `distillation.py`: ResNet-56, DeiT-Tiny and SmolLM2-135M, each with data and scores.

Plans are made once and kept: half of the MACs of ResNet-56 in width, 6 activations and 2 attentions of DeiT-Tiny, and
the 7 of 30 blocks of SmolLM2 from `llm_depth`, with refitted maps in their place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.optim import AdamW

from benchmarks.data import cifar, smollm2, tiny_imagenet
from benchmarks.data.real import DEVICE, deit_tiny
from benchmarks.data.text import next_token_loss
from benchmarks.language.llm_depth_lora import drawn_sequences
from benchmarks.language.llm_depth_scores import window_losses, windows
from benchmarks.recovery.fits import Subject, deit, resnet, shuffled
from benchmarks.runner.plans import saved_plan
from benchmarks.runner.rows import CHECKPOINTS, Scores
from benchmarks.width.cifar_models import load
from prunerecover import Budget, DepthPrune, LoRARecover, Plan, WidthPrune, plan_depth, plan_width

BASE = "labels and teacher"  # base of comparisons
PLANS = CHECKPOINTS / "distillation"
BLOCKS = tuple(range(12, 19))  # removed blocks of SmolLM2, from docs/results/llm_depth.md
UNITS = {"activation": 6, "attention": 2}  # removed units of DeiT-Tiny
CIFAR_IMAGES, CIFAR_SCORED, DEIT_IMAGES, DEIT_SCORED = 3000, 5000, 500, 2000
SEQUENCES, WINDOWS = 48, 48  # texts of an epoch; windows of each source that are scored


@dataclass(frozen=True)
class Distilled:
    """Subject with its surgery.

    Attributes:
        subject: Network and its data.
        plan: Function that returns the plan.
        surgeon: Maker of a callback that prunes by a plan.
        again: Maker of a faster callback for later fits, if the first is slow.
        beside: Maker of further callbacks.
    """

    subject: Subject
    plan: Callable[[], Plan]
    surgeon: Callable[[Plan], pl.Callback]
    again: Callable[[Plan], pl.Callback] | None = None
    beside: Callable[[], list[pl.Callback]] = list


def _resnet_plan() -> Plan:
    return plan_width(load("ResNet-56"), Budget(macs=0.5), batches=cifar.batches(256, 0, 64))


def _deit_plan() -> Plan:
    return plan_depth(deit_tiny(), remove=UNITS, batches=tiny_imagenet.calibration(96))


def _smollm2_plan() -> Plan:
    def known(context: Any) -> dict[str, float]:
        return {unit.name: float(int(unit.name.rpartition(".")[2]) not in BLOCKS) for unit in context.units}

    batches = [{"input_ids": some} for some in drawn_sequences(16).to(DEVICE).split(4)]
    how: dict[str, Any] = {"importance": known, "search": "one_shot", "batches": batches}
    return plan_depth(smollm2.network(), remove={"block": len(BLOCKS)}, **how)


def _text_losses(network: nn.Module) -> Scores:
    """Return the loss of each held-out window, in nats per token, of both sources."""
    every = [windows(text) for text in ("wikitext2", "tinystories")]
    return window_losses(network, torch.cat([own[:: len(own) // WINDOWS][:WINDOWS] for own in every]))


SUBJECTS: Mapping[str, Distilled] = {
    "ResNet-56": Distilled(
        resnet(
            "ResNet-56",
            text=f"Half of the MACs out in width, {CIFAR_IMAGES:,} JPEGs of CIFAR-10 an epoch, SGD with momentum 0.9; "
            f"top-1 in percent on {CIFAR_SCORED:,} test JPEGs.",
            loader=lambda seed: shuffled(cifar.training_images(CIFAR_IMAGES, 0), 50, seed),
            scores=partial(cifar.hits, n=CIFAR_SCORED),
            rates=(0.02, 0.005, 0.05),
        ),
        plan=lambda: saved_plan("resnet56", _resnet_plan, PLANS),
        surgeon=lambda plan: WidthPrune(plan=plan, merge="never"),
        again=lambda plan: WidthPrune(plan=plan, merge="never", reconstruct=False, calibration=16),
    ),
    "DeiT-Tiny": Distilled(
        deit(
            DEIT_SCORED,
            text=f"6 activations and 2 attentions out, {DEIT_IMAGES} images of tiny_imagenet's 200 classes an epoch, "
            f"AdamW; top-1 in percent on {DEIT_SCORED:,} validation images. The teacher answers in 1,000 classes, "
            "labels are of 200.",
            loader=lambda seed: shuffled(tiny_imagenet.training_images(DEIT_IMAGES), 16, seed),
            rates=(1e-4, 2e-5, 5e-4),
        ),
        plan=lambda: saved_plan("deit_tiny", _deit_plan, PLANS),
        surgeon=lambda plan: DepthPrune(plan=plan, merge="never"),
    ),
    "SmolLM2-135M": Distilled(
        Subject(
            text=f"7 of 30 blocks out, {SEQUENCES} texts of 128 tokens an epoch, half of wikitext2 and half of "
            f"tinystories, adapters of rank 16, AdamW; nats per token of {WINDOWS} held-out windows of each source, "
            "lower better.",
            dense=lambda: copy.deepcopy(smollm2.network()),
            loader=lambda seed: shuffled((drawn_sequences(SEQUENCES),), 4, seed),
            loss=lambda network, batch: next_token_loss(network, batch[0]),
            optimizer=partial(AdamW, weight_decay=0.0),
            scores=_text_losses,
            rates=(3e-3, 1e-3, 1e-2),
            scale=1,
            digits=3,
            settings=tiny_imagenet.PRECISION,
        ),
        plan=lambda: saved_plan("smollm2", _smollm2_plan, PLANS),
        surgeon=lambda plan: DepthPrune(plan=plan, merge="never"),
        beside=lambda: [LoRARecover(rank=16, modules_to_save=("norm",), seed=0)],
    ),
}
