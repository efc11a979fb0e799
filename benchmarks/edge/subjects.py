"""Networks of the edge matrix: a task each, real weights and data, dense and pruned, exported once for all runtimes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data import cifar, fastestdet
from benchmarks.data.language_models import stories260k
from benchmarks.data.real import data_root, deit_tiny_name
from benchmarks.data.text import TEXTS, calibration
from benchmarks.edge.runtimes import Arrays, Exported
from benchmarks.end_to_end.segmentation import Counts, counted, drawn, interval, miou
from benchmarks.runner.rows import CHECKPOINTS, Figure, Scores
from benchmarks.width.cifar_models import load
from prunerecover import Budget, Plan, apply_plan, export, merge, plan_depth, plan_width, reconstruct
from prunerecover.cost.macs import count_macs
from prunerecover.cost.statistics import paired_difference
from prunerecover.recipes.data.segmentation_data import SegmentationData
from prunerecover.recipes.tasks.segmenter import ImageSegmenter

CALIBRATION, IMAGES, SCENES, TEXTS_SCORED, TOKENS, CLASSES, RESAMPLES = 32, 500, 64, 50, 128, 11, 100
Outputs = Sequence[Arrays]  # of each sample


@dataclass(frozen=True)
class Subject:
    """A network to prune, with data.

    Attributes:
        task: Name of the task.
        model: Name of the network.
        removed: Description of the removed units.
        metric: Name of the score.
        build: Maker of the dense network.
        plan: Decides on a network, from calibration batches.
        seen: Maker of the calibration samples, `(N, ...)`.
        scored: Maker of the scored samples, `(M, ...)`.
        score: Function from outputs to a figure, and to the change to further outputs, if given.
        convolutional: Whether the network is reconstructed, and int8 has scales from the calibration samples.
        name: Name of the input; empty: unnamed.
    """

    task: str
    model: str
    removed: str
    metric: str
    build: Callable[[], nn.Module]
    plan: Callable[[nn.Module, list[Any]], Plan]
    seen: Callable[[], Tensor]
    scored: Callable[[], Tensor]
    score: Callable[[Outputs, Outputs | None], Figure]
    convolutional: bool = True
    name: str = ""

    def batch(self, samples: Tensor) -> Any:
        """Return a batch as the network takes it."""
        return {self.name: samples} if self.name else samples

    def files(self, which: str) -> Exported:
        """Return the files of the dense or pruned network; the first call plans and exports both."""
        folder = CHECKPOINTS / "edge" / self.task
        if not (folder / "shares.json").is_file():
            self._export(folder)
        given = [[sample.numpy()] for sample in self.seen().contiguous().split(1)]
        own = folder / which
        return Exported(own, own / "model.onnx", own / "model.pt2", given, self.convolutional)

    @property
    def macs_share(self) -> float:
        """Remaining share of the MACs."""
        return float(json.loads((CHECKPOINTS / "edge" / self.task / "shares.json").read_text())["macs"])

    def _export(self, folder: Path) -> None:
        dense, samples = self.build(), self.seen().contiguous()
        batches = [self.batch(part) for part in samples.split(16)]
        plan = self.plan(copy.deepcopy(dense), batches)
        pruned = copy.deepcopy(dense)
        apply_plan(pruned, plan)
        if self.convolutional:
            reconstruct(pruned, dense, plan, batches)
        merge(pruned)
        example = self.batch(samples[:1])
        for name, network in (("dense", dense), ("pruned", pruned)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            for ending in ("onnx", "pt2"):
                export(network, folder / name / f"model.{ending}", example, dynamic=False)
        shares = {"macs": count_macs(pruned, example) / count_macs(dense, example)}
        (folder / "shares.json").write_text(json.dumps(shares))


def paired(found: Scores, others: Scores | None) -> Figure:
    """Return the mean of scores, or of the change to others on the same samples, with the interval."""
    if others is None:
        return Figure.of(found)
    return Figure.within(paired_difference(found, others, seed=0), len(found))


def top1(found: Outputs, others: Outputs | None) -> Figure:
    """Return top-1 in percent."""
    labels = cifar.scored_images("cifar10")[1][:IMAGES].numpy()
    hits = [np.array([out[0].argmax() for out in each]) == labels for each in (found, others or found)]
    first, second = (100.0 * each for each in hits)
    return paired(first, second if others else None)


def token_losses(found: Outputs, others: Outputs | None) -> Figure:
    """Return the mean loss per token."""
    ids = stories("validation.jsonl", TEXTS_SCORED)

    def losses(outputs: Outputs) -> Scores:
        logits = torch.from_numpy(np.concatenate([out[0] for out in outputs])).float()
        return F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none").mean(1).double().numpy()

    return paired(losses(found), losses(others) if others else None)


def scene_miou(found: Outputs, others: Outputs | None) -> Figure:
    """Return mIoU in percent, with a bootstrap over the scenes."""
    counts = [_pixels(each) for each in ([found] if others is None else [others, found])]
    values = [float(miou(each.sum(0))) for each in counts]
    samples = [miou(drawn(each)) for each in counts]
    if others is None:
        return interval(values[0], samples[0], len(counts[0]))
    return interval(values[0] - values[1], samples[0] - samples[1], len(counts[0]))


def _pixels(outputs: Outputs) -> Counts:
    batches = [(torch.from_numpy(out[0]), target[None]) for out, target in zip(outputs, camvid("test")[1], strict=True)]
    return counted(nn.Identity(), batches, CLASSES)


def detector_map50(found: Outputs, others: Outputs | None) -> Figure:
    """Return mAP50 in percent; the change to others has a bootstrap over the scenes."""
    scenes = fastestdet.scenes("val2017")
    sets = [
        [fastestdet.boxes_of(torch.from_numpy(out[0])[0], size) for out, size in zip(each, scenes.sizes, strict=True)]
        for each in ([found] if others is None else [others, found])
    ]

    def value(chosen: Sequence[int]) -> float:
        objects = [scenes.objects[i] for i in chosen]
        first, *more = (fastestdet.mean_precision([own[i] for i in chosen], objects)["map_50"] for own in sets)
        return first - sum(more)

    n, generator = len(scenes.images), np.random.default_rng(0)
    if others is None:
        return Figure(value(range(n)), n=n)
    samples = np.array([value(generator.integers(n, size=n).tolist()) for _ in range(RESAMPLES)])
    return interval(value(range(n)), samples, n)


@cache
def stories(file: str, n: int) -> Tensor:
    """Return the first tokens of stories, `(n, 128)`."""
    return calibration(stories260k()[1], (TEXTS["tinystories"][0], file), n, TOKENS, 0)


@cache
def camvid(split: str) -> tuple[Tensor, Tensor]:
    """Return the scenes of CamVid, `(N, 3, 160, 224)`, without augmentation, and the classes of pixels."""
    how: dict[str, Any] = {"image_size": (160, 224), "ignore": CLASSES, "num_workers": 0}
    data = SegmentationData(str(data_root() / "data" / "camvid"), model=deit_tiny_name(), **how)
    data.prepare_data()
    data.setup("test")
    if split == "test":
        images, classes = _joined(data.test_dataloader())
        return images[:SCENES], classes[:SCENES]
    data.setup("fit")
    return _joined(data.val_dataloader())


def _joined(loader: Any) -> tuple[Tensor, Tensor]:
    images, classes = zip(*loader, strict=True)
    return torch.cat(images), torch.cat(classes)


def segmenter() -> nn.Module:
    """Return a DeiT-Tiny with a linear decoder, fitted to scenes of the validation split by least squares."""
    network: Any = ImageSegmenter(CLASSES, deit_tiny_name(), pretrained=True, image_size=(160, 224)).network.eval()
    images, classes = camvid("val")
    backbone = network.backbone
    with torch.inference_mode():
        tokens = torch.cat([backbone(part)[:, backbone.num_prefix_tokens :] for part in images.split(8)]).flatten(0, 1)
    one_hot = F.one_hot(classes.clamp(max=CLASSES), CLASSES + 1)[..., :CLASSES].permute(0, 3, 1, 2).float()
    wanted = F.avg_pool2d(one_hot, 16).flatten(2).transpose(1, 2).flatten(0, 1).double()
    x = torch.cat([tokens, torch.ones(len(tokens), 1)], 1).double()
    ridge = 1e-3 * (x * x).sum(0).mean() * torch.eye(x.shape[1])
    found = torch.linalg.solve(x.T @ x + ridge, x.T @ wanted).float()
    network.head.weight.data, network.head.bias.data = found[:-1].T.contiguous(), found[-1]
    return network


SUBJECTS = (
    Subject(
        "classification",
        "ResNet-20, CIFAR-10",
        "channels by eights, 30% of the MACs",
        "top-1, %",
        lambda: load("ResNet-20"),
        lambda network, batches: plan_width(
            network, Budget(macs=0.3), batches=batches, importance="l2_norm", round_to=8
        ),
        lambda: cifar.training_images(4 * CALIBRATION, 0)[0],
        lambda: cifar.scored_images("cifar10")[0][:IMAGES],
        top1,
    ),
    Subject(
        "detection",
        "FastestDet, COCO",
        "channels, 10% of the MACs",
        "mAP50, %",
        fastestdet.fastestdet,
        lambda network, batches: plan_width(network, Budget(macs=0.1), batches=batches, importance="l2_norm"),
        lambda: fastestdet.scenes("train2017").images[:CALIBRATION],
        lambda: fastestdet.scenes("val2017").images,
        detector_map50,
    ),
    Subject(
        "segmentation",
        "DeiT-Tiny with a linear decoder, CamVid",
        "heads and neurons, 20% of the MACs",
        "mIoU, %",
        segmenter,
        lambda network, batches: plan_width(network, Budget(macs=0.2), batches=batches, importance="l2_norm"),
        lambda: camvid("val")[0][:CALIBRATION],
        lambda: camvid("test")[0],
        scene_miou,
        convolutional=False,
    ),
    Subject(
        "language",
        "stories260K",
        "a block of 5",
        "loss per token",
        lambda: stories260k()[0],
        lambda network, batches: plan_depth(network, remove={"block": 1}, batches=batches),
        lambda: stories("train.jsonl", CALIBRATION),
        lambda: stories("validation.jsonl", TEXTS_SCORED),
        token_losses,
        convolutional=False,
        name="input_ids",
    ),
)
BY_TASK = {subject.task: subject for subject in SUBJECTS}
