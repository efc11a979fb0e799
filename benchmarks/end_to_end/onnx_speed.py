"""Exported networks in onnxruntime: what a pruned model of each task gains, beside what its MACs promise.

    PRUNERECOVER_DATA=... python -m benchmarks.end_to_end.onnx_speed

Each model is exported before and after pruning, and both files are timed on one thread, in interleaved pairs. MACs
promise the share of them that is removed; what is gained is the share of the time that is. Outputs of each file are
compared with those of its network on the batch that is timed. Values do not change the time: the head of the segmenter
and the detectors are random, the rest is trained. About 10 minutes on a core. Resumable: rows that are in the results
are not made again.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from benchmarks.data.cifar import batches
from benchmarks.data.real import command, data_root, deit_tiny, parser, photos, stored, write
from benchmarks.depth.graph_depth_stories260k import stories
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, apply_plan, export, merge, plan_depth, plan_width
from prunerecover.cost.latency import latency_ratio
from prunerecover.cost.macs import count_macs
from prunerecover.display.markdown import table
from prunerecover.recipes.tasks.object_detector import ObjectDetector
from prunerecover.recipes.tasks.segmenter import ImageSegmenter

NAME, PAIRS, WARMUP = "onnx_speed", 60, 5
HEAD = ("task", "model", "removed", "MACs", "time (95% interval)", "gained of what is promised", "outputs differ by")


@dataclass(frozen=True)
class Subject:
    """A model to prune.

    Attributes:
        task: Of the model.
        model: Its name.
        removed: In words.
        build: Returns the dense network.
        batch: What is timed.
        plan: Decides on a dense network.
    """

    task: str
    model: str
    removed: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Any]
    plan: Callable[[nn.Module], Plan]


@dataclass(frozen=True)
class Row:
    """What was measured of a model; shares are of the dense network's."""

    task: str
    model: str
    removed: str
    macs_share: float
    time_share: float
    ci_low: float
    ci_high: float
    dense_ms: float
    pruned_ms: float
    gained: float
    gained_low: float
    gained_high: float
    difference: float
    pairs: int


class InOnnxRuntime(nn.Module):
    """A file of ONNX as a module that runs on one thread.

    Args:
        path: Of the file.
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
    """Return the network of the recipe `segmenter_width_camvid`; its head is not trained."""
    name = f"local-dir:{data_root() / 'models' / 'deit_tiny_patch16_224'}"
    return ImageSegmenter(11, name, pretrained=True, image_size=(160, 224)).network.eval()


def detector(name: str, **how: Any) -> nn.Module:
    """Return a detector of torchvision, not trained."""
    return ObjectDetector(name, model_kwargs=how).network.eval()


def language_model() -> nn.Module:
    """Return stories260K."""
    model: nn.Module = AutoModelForCausalLM.from_pretrained(data_root() / "models" / "stories260K")
    return model.eval()


def scenes(height: int, width: int, n: int) -> Tensor:
    """Return photos at a size, `(n, 3, height, width)`."""
    return nn.functional.interpolate(photos("train2017")[:n], (height, width))


def tokens() -> dict[str, Tensor]:
    """Return 8 beginnings of stories, of 128 tokens each."""
    ids = stories(0)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def narrower(network: nn.Module, share: float, batch: Any, **how: Any) -> Plan:
    """Plan to take a share of the MACs in width, those units first whose weights are least: no labels are at hand."""
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
        language_model,
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


def measured(subject: Subject, folder: Path) -> Row:
    """Prune, export, compare and time."""
    dense, batch = subject.build(), subject.batch()
    pruned = copy.deepcopy(dense)
    apply_plan(pruned, subject.plan(pruned))
    merge(pruned)
    files = [InOnnxRuntime(export(net, folder / f"{name}.onnx", batch)) for name, net in (("a", dense), ("b", pruned))]
    macs = count_macs(pruned, batch) / count_macs(dense, batch)
    time = latency_ratio(files[0], files[1], batch, pairs=PAIRS, warmup=WARMUP, threads=1)
    share, low, high = time.ratio.value, time.ratio.low, time.ratio.high
    return Row(
        task=subject.task,
        model=subject.model,
        removed=subject.removed,
        macs_share=macs,
        time_share=share,
        ci_low=low,
        ci_high=high,
        dense_ms=time.dense_ms,
        pruned_ms=time.pruned_ms,
        gained=(1 - share) / (1 - macs),
        gained_low=(1 - high) / (1 - macs),
        gained_high=(1 - low) / (1 - macs),
        difference=difference(pruned, files[1], batch),
        pairs=PAIRS,
    )


@torch.inference_mode()
def difference(network: nn.Module, file: InOnnxRuntime, batch: Any) -> float:
    """Return by how much outputs of a file and of its network differ, at most; relative where values are above 1."""
    given = batch if isinstance(batch, dict) else {}
    output: Any = network(**given) if given else network(batch)
    if given:
        output = output.logits
    wanted = list(output.values()) if isinstance(output, dict) else [output]
    found = [torch.from_numpy(value) for value in (file(**given) if given else file(batch))]
    pairs = zip(found, wanted, strict=True)
    return max(float(((one - other).abs() / other.abs().clamp(min=1)).max()) for one, other in pairs)


def markdown(rows: list[Row]) -> str:
    """Return the page."""
    shown = [
        (
            row.task,
            row.model,
            row.removed,
            f"{row.macs_share:.3f}",
            f"{row.time_share:.3f} ({row.ci_low:.3f}-{row.ci_high:.3f})",
            f"{row.gained:.2f} ({row.gained_low:.2f}-{row.gained_high:.2f})",
            f"{row.difference:.0e}",
        )
        for row in rows
    ]
    return "\n".join(
        [
            "# Exported networks in onnxruntime",
            "",
            f"`{command()}`",
            "",
            f"Shares are of the dense network's file, on one thread, each the median of {PAIRS} interleaved pairs. "
            "MACs that are removed promise as large a share of the time; the last column but one is how much of that "
            "is gained. Differences are relative where outputs are above 1. Those of the detectors, which are not "
            "trained, vary little; tests compare detectors whose outputs do.",
            "",
            table(HEAD, shown),
        ]
    )


def main() -> None:
    """Measure and write."""
    parser(__doc__).parse_args()
    rows = [Row(**row) for row in stored(NAME)]
    for subject in SUBJECTS:
        if not any((row.model, row.removed) == (subject.model, subject.removed) for row in rows):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measured(subject, Path(folder)))
            print(rows[-1])
        save(rows)


def save(rows: list[Row]) -> None:
    """Write JSON and Markdown."""
    found = {"onnxruntime": version("onnxruntime"), "onnx": version("onnx")}
    write(NAME, {"threads": 1, "further_versions": found, "rows": [asdict(row) for row in rows]}, markdown(rows))


if __name__ == "__main__":
    main()
