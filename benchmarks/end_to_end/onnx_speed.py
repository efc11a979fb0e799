"""Exported networks in onnxruntime: speedups of pruned models by task, against the savings in MACs.

    PRUNERECOVER_DATA=... python -m benchmarks.end_to_end.onnx_speed

Each model is exported before and after pruning, and both files are timed on one thread, in interleaved pairs. The
removed share of the MACs is compared with the removed share of the time. Outputs of each file are compared with its
network's on the timed batch. Values do not change the time: the segmenter's head and the detectors are random, all
other weights are trained. About 10 minutes on a core.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor, nn

from benchmarks.data.cifar import batches
from benchmarks.data.language_models import stories260k
from benchmarks.data.real import data_root, deit_tiny, photos
from benchmarks.data.text import calibration
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Table, figure, text
from benchmarks.runner.plans import pruned
from benchmarks.runner.rows import Figure
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, export, plan_depth, plan_width
from prunerecover.cost.latency import latency_ratio
from prunerecover.cost.macs import count_macs
from prunerecover.recipes.tasks.object_detector import ObjectDetector
from prunerecover.recipes.tasks.segmenter import ImageSegmenter

PAIRS, WARMUP = 60, 5


@dataclass(frozen=True)
class Subject:
    """A model to prune.

    Attributes:
        task: Task of the model.
        model: Name of the model.
        removed: Description of the removed units.
        build: Returns the dense network.
        batch: Maker of the timed batch.
        plan: Decides on a dense network.
    """

    task: str
    model: str
    removed: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Any]
    plan: Callable[[nn.Module], Plan]


class InOnnxRuntime(nn.Module):
    """ONNX file as a module on one thread.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.names = [entry.name for entry in self.session.get_inputs()]

    def forward(self, *args: Tensor, **kwargs: Tensor) -> list[Any]:
        """Return the outputs."""
        given = dict(zip(self.names, args, strict=False)) | kwargs
        return self.session.run(None, {name: given[name].numpy() for name in self.names})  # type: ignore[no-any-return]


def segmenter() -> nn.Module:
    """Return the network of the recipe `segmenter_width_camvid`, with an untrained head."""
    name = f"local-dir:{data_root() / 'models' / 'deit_tiny_patch16_224'}"
    return ImageSegmenter(11, name, pretrained=True, image_size=(160, 224)).network.eval()


def detector(name: str, **how: Any) -> nn.Module:
    """Return a detector of torchvision, not trained."""
    return ObjectDetector(name, model_kwargs=how).network.eval()


def scenes(height: int, width: int, n: int) -> Tensor:
    """Return photos at a size, `(n, 3, height, width)`."""
    return nn.functional.interpolate(photos("train2017")[:n], (height, width))


def tokens() -> dict[str, Tensor]:
    """Return 8 beginnings of stories, of 128 tokens each."""
    ids = calibration(stories260k()[1], ("tinystories", "train.jsonl"), 8, 128, 0)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def narrower(network: nn.Module, share: float, batch: Any, **how: Any) -> Plan:
    """Plan the removal of a share of the MACs in width, by the norms of weights: no labels are needed."""
    return plan_width(network, Budget(macs=share), batches=[batch], importance="l2_norm", **how)


SUBJECTS = (
    Subject(
        "classification",
        "DeiT-Tiny",
        "6 activations, 2 attentions",
        deit_tiny,
        lambda: scenes(224, 224, 2),
        lambda network: plan_depth(
            network, remove={"activation": 6, "attention": 2}, batches=[scenes(224, 224, 16)], search="one_shot"
        ),
    ),
    Subject(
        "classification",
        "ResNet-56",
        "channels by eights, half of the MACs",
        lambda: load("ResNet-56"),
        lambda: batches(32, 0)[0][0],
        lambda network: plan_width(network, Budget(macs=0.5), batches=batches(64, 0), round_to=8),
    ),
    Subject(
        "segmentation",
        "DeiT-Tiny, linear decoder",
        "heads and neurons, 30% of the MACs",
        segmenter,
        lambda: scenes(160, 224, 2),
        lambda network: narrower(network, 0.3, scenes(160, 224, 2)),
    ),
    Subject(
        "language",
        "stories260K",
        "2 of 5 blocks",
        lambda: stories260k()[0],
        tokens,
        lambda network: plan_depth(network, remove={"block": 2}, batches=[tokens()]),
    ),
    Subject(
        "detection",
        "RetinaNet, ResNet-50, 224 pixels",
        "channels, 30% of the MACs",
        lambda: detector("retinanet_resnet50_fpn", min_size=224, max_size=224),
        lambda: scenes(224, 224, 1),
        lambda network: narrower(network, 0.3, scenes(224, 224, 1)),
    ),
    Subject(
        "detection",
        "SSDLite, MobileNetV3-Large",
        "channels by eights, 30% of the MACs",
        lambda: detector("ssdlite320_mobilenet_v3_large"),
        lambda: scenes(320, 320, 1),
        lambda network: narrower(network, 0.3, scenes(320, 320, 1), round_to=8),
    ),
)


def measure(number: int) -> dict[str, Any]:
    """Prune, export, compare and time."""
    subject = SUBJECTS[number]
    dense, batch = subject.build(), subject.batch()
    other = pruned(dense, subject.plan(copy.deepcopy(dense)))
    with tempfile.TemporaryDirectory() as folder:
        paths = [export(net, Path(folder, f"{name}.onnx"), batch) for name, net in (("a", dense), ("b", other))]
        files = [InOnnxRuntime(path) for path in paths]
        time = latency_ratio(files[0], files[1], batch, pairs=PAIRS, warmup=WARMUP, threads=1)
        apart = difference(other, files[1], batch)
    macs = count_macs(other, batch) / count_macs(dense, batch)
    ratio = time.ratio
    gained = Figure(*((1 - end) / (1 - macs) for end in (ratio.value, ratio.high, ratio.low)), PAIRS)
    named = {"task": subject.task, "model": subject.model, "removed": subject.removed}
    times = {"dense_ms": time.dense_ms, "pruned_ms": time.pruned_ms}
    return {"time": Figure.within(ratio, PAIRS), "gained": gained, "macs_share": macs, "apart": apart, **named, **times}


@torch.inference_mode()
def difference(network: nn.Module, file: InOnnxRuntime, batch: Any) -> float:
    """Return the largest difference between outputs of a file and the network; relative for values above 1."""
    given = batch if isinstance(batch, dict) else {}
    output: Any = network(**given) if given else network(batch)
    if given:
        output = output.logits
    wanted = list(output.values()) if isinstance(output, dict) else [output]
    found = [torch.from_numpy(value) for value in (file(**given) if given else file(batch))]
    pairs = zip(found, wanted, strict=True)
    return max(float(((one - other).abs() / other.abs().clamp(min=1)).max()) for one, other in pairs)


BENCHMARK = Benchmark(
    name="onnx_speed",
    doc=__doc__,
    title="Exported networks in onnxruntime",
    text=f"""Shares are of the dense network's file, on one thread, each the median of {PAIRS} interleaved pairs. MACs
    that are removed promise as large a share of the time; the last column but one is how much of that is gained.
    Differences are relative where outputs are above 1. Those of the detectors, which are not trained, vary little;
    tests compare detectors whose outputs do.""",
    measure=measure,
    axes={"number": Axis(tuple(range(len(SUBJECTS))))},
    threads=0,
    tables=(
        Table(
            [
                *(text("task"), text("model"), text("removed")),
                text("macs_share", "MACs", "{:.3f}"),
                figure("time", "time (95% interval)", 3),
                figure("gained", "gained of what is promised", 2),
                text("apart", "outputs differ by", "{:.0e}"),
            ],
            line=("number",),
        ),
    ),
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
