"""Seconds that each public planning call takes on a GPU: DeiT-Tiny, ViT-L, ResNet-50 and Llama-8B, by their shapes.

    python -m benchmarks.gpu.planning --out FOLDER
    python -m benchmarks.gpu.planning --rehearse           (far smaller shapes, on a processor within a minute)

Weights are random and made on the device, in bf16 for the Llama; no data are needed. A third of the MACs is to go. It
ends within its minutes: a call that takes a quarter of them is given up, and the page says so; calls for which there
is no time are left, and a later run makes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import timm
import torch
from timm.models.resnet import Bottleneck, ResNet
from torch import Tensor, nn

from benchmarks.data.real import DEVICE
from benchmarks.language.llm_on_gpu import llama
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Line, Table, across, text
from prunerecover import (
    Budget,
    find_groups,
    find_units,
    plan_boundary,
    plan_depth,
    plan_pruning,
    plan_width,
    sensitivity,
)
from prunerecover.cost.environment import device_name
from prunerecover.language.likelihood import next_token_loss

MINUTES, SHARE, SEED = 2.0, 0.33, 0
IMAGES, TEXTS, TOKENS = 64, 8, 256  # samples of a planning


@dataclass(frozen=True)
class Planned:
    """A network on the device with what it is planned on.

    Attributes:
        network: With random weights.
        batches: Random samples, in one batch.
        loss: Of a batch; None: the cross-entropy.
    """

    network: nn.Module
    batches: list[Any]
    loss: Callable[[nn.Module, Any], Tensor] | None = None

    @property
    def how(self) -> dict[str, Any]:
        """Arguments that every call gets."""
        return {"batches": self.batches}

    @property
    def labelled(self) -> dict[str, Any]:
        """Arguments of calls that score widths."""
        return {**self.how, "loss": self.loss}


def _images(network: nn.Module, side: int, n: int) -> Planned:
    generator = torch.Generator(DEVICE).manual_seed(SEED)
    images = torch.randn(n, 3, side, side, generator=generator, device=DEVICE)
    return Planned(network.eval(), [(images, torch.arange(n, device=DEVICE) % 10)])


def _vit(name: str, rehearsal: bool) -> Planned:
    torch.manual_seed(SEED)
    shape = {"img_size": 32, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 10} if rehearsal else {}
    with DEVICE:
        return _images(timm.create_model(name, **shape), 32 if rehearsal else 224, 8 if rehearsal else IMAGES)


def _resnet(rehearsal: bool) -> Planned:
    torch.manual_seed(SEED)
    shape = {"layers": (1, 1, 1, 1), "channels": (8, 8, 16, 16), "num_classes": 10} if rehearsal else {}
    with DEVICE:
        network = ResNet(Bottleneck, **{"layers": (3, 4, 6, 3), **shape})
    return _images(network, 32 if rehearsal else 224, 8 if rehearsal else IMAGES)


def _llama(rehearsal: bool) -> Planned:
    network = llama(64, blocks=3, vocabulary=128) if rehearsal else llama()
    n, length = (4, 16) if rehearsal else (TEXTS, TOKENS)
    drawn = torch.randint(100, (n, length), generator=torch.Generator().manual_seed(SEED)).to(DEVICE)
    return Planned(network, [{"input_ids": drawn}], next_token_loss)


NETWORKS: Mapping[str, Callable[[bool], Planned]] = {
    "DeiT-Tiny": partial(_vit, "deit_tiny_patch16_224"),
    "ResNet-50": _resnet,
    "Llama-8B": _llama,
    "ViT-L": partial(_vit, "vit_large_patch16_224"),
}
CALLS: Mapping[str, Callable[[Planned], object]] = {
    "find_units": lambda on: find_units(on.network, on.batches[0], ("block", "layer")),
    "find_groups": lambda on: find_groups(on.network, on.batches[0]),
    "plan_depth": lambda on: plan_depth(on.network, Budget(macs=SHARE), **on.how),
    "plan_depth, one_shot": lambda on: plan_depth(on.network, Budget(macs=SHARE), search="one_shot", **on.how),
    "plan_width": lambda on: plan_width(on.network, Budget(macs=SHARE), **on.labelled),
    "sensitivity": lambda on: sensitivity(on.network, **on.labelled),
    "plan_pruning": lambda on: plan_pruning(on.network, Budget(macs=SHARE), **on.labelled),
    "plan_boundary": lambda on: plan_boundary(on.network, Budget(macs=SHARE), evaluate=untrained, **on.how),
}
WITHOUT = {("ResNet-50", "plan_boundary"), ("Llama-8B", "plan_boundary")}  # no attentions; gated activations


def untrained(trials: Any) -> list[float]:
    """Return an accuracy per trial, as short runs would: these are the caller's time."""
    return [50.0 + len(trials) - number for number, _ in enumerate(trials)]


@lru_cache(maxsize=1)
def planned(name: str, rehearsal: bool) -> Planned:
    """Return a network on the device; calls leave it as it is, and the next one takes its place."""
    return NETWORKS[name](rehearsal)


def measure(network: str, method: str, rehearse: bool) -> dict[str, Any]:
    """Time one call, the first of its kind in a process, as a user's is."""
    on = planned(network, rehearse)
    _synchronise()
    started = time.perf_counter()
    try:
        CALLS[method](on)
    except Exception as error:  # one that fails, for lack of memory say, must not cost the rows behind it
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0]}", "device": device_name(DEVICE)}
    _synchronise()
    return {"seconds": time.perf_counter() - started, "device": device_name(DEVICE)}


def _synchronise() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def shown(line: Line) -> str:
    """Return the seconds of a call, or why there are none."""
    row = line.first
    if "over" in row.notes:
        return f"over {row['over']:.0f}"
    return row.get("failed") or f"{row['seconds']:.2f}"


BENCHMARK = Benchmark(
    name="planning_gpu",
    doc=__doc__,
    title="Seconds of planning on a GPU",
    text=f"""Shapes with random weights; a third of the MACs goes. {IMAGES} images of 224 pixels in single precision, or
    {TEXTS} texts of {TOKENS} tokens in bf16; time grows with their number. Each call once, with nothing kept from the
    calls before it; `plan_boundary` without its short runs.""",
    measure=measure,
    axes={"network": Axis(tuple(NETWORKS)), "method": Axis(tuple(CALLS), "--calls")},
    skipped=lambda network, method: (network, method) in WITHOUT,
    minutes=MINUTES,
    longest=0.25,
    rehearsal=True,
    threads=0,
    tables=(
        Table(
            [text("method", "call", "`{}`"), *across("network", tuple(NETWORKS), [Column("{}", shown)]), text("device")]
        ),
    ),
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
