"""Pruned models of the benchmarks as folders to release: weights, plan, model card and checksums.

    PRUNERECOVER_DATA=... python -m benchmarks.project.release_files --output release

ResNet-20 and ResNet-56 of CIFAR-10 are narrowed to half of their MACs, as in the benchmark of width, and stories260K is
pruned of the block that changes its output least, without training. Each folder holds the files for `load_pruned` (and
`from_pretrained`, for the language model), a card with scores before and after on the test split, and SHA256SUMS for
`sha256sum -c`.

The weights are not kept in the repository, because their sources name no licence. A publisher looks the licence up and
names it: `--models resnet20-cifar10-half --license ...`. About 10 minutes on a core; `--samples 400` is quicker.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data.cifar import batches, scored_images
from benchmarks.data.language_models import stories260k
from benchmarks.data.text import calibration
from benchmarks.runner.benchmark import command_line
from benchmarks.width.cifar_models import load
from prunerecover import (
    Budget,
    Plan,
    apply_plan,
    compare,
    plan_depth,
    plan_width,
    recalibrate_batchnorm,
    reconstruct,
    save_model_card,
    save_pruned,
)
from prunerecover.files.atomic import write_text
from prunerecover.files.hashes import sha256_of

SUMS = "SHA256SUMS"
LENGTH, TEXTS = 128, 32
SCORED, RECALIBRATION, OTHER = 256, 1024, 1000  # images, images, seed of the latter: as in the benchmark of width


@dataclass(frozen=True)
class Release:
    """A pruned model.

    Attributes:
        network: After surgery.
        dense: Network before pruning.
        plan: All edits.
        scored: Labelled batches of the test split.
        metric: Metric of the card's table.
        datasets: Hub ids of the calibration data.
    """

    network: nn.Module
    dense: nn.Module
    plan: Plan
    scored: list[Any]
    metric: Any
    datasets: tuple[str, ...]


def resnet(name: str, samples: int) -> Release:
    """Take half of the MACs out of a ResNet.

    Args:
        name: Name of the network.
        samples: Number of test images to score on, the first ones.
    """
    dense, calibrating = load(name), batches(SCORED, 0)
    network = copy.deepcopy(dense)
    plan = plan_width(network, Budget(macs=0.5), batches=calibrating)
    apply_plan(network, plan)
    reconstruct(network, dense, plan, calibrating)
    recalibrate_batchnorm(network, [images for images, _ in batches(RECALIBRATION, OTHER)])
    parts = (tensor[:samples].split(100) for tensor in scored_images("cifar10"))
    return Release(network, dense, plan, list(zip(*parts, strict=True)), "top1", ("uoft-cs/cifar10",))


def language_model(samples: int) -> Release:
    """Take a block out of stories260K.

    Args:
        samples: Held-out stories to score on.
    """
    dense, tokenizer = stories260k()
    train, held_out = (
        calibration(tokenizer, ("tinystories", f"{split}.jsonl"), count, LENGTH, 0)
        for split, count in (("train", TEXTS), ("validation", samples))
    )
    network = copy.deepcopy(dense)
    plan = plan_depth(network, remove={"block": 1}, batches=[{"input_ids": train}])
    apply_plan(network, plan)
    scored = [{"input_ids": ids, "labels": ids} for ids in held_out.split(8)]
    return Release(network, dense, plan, scored, {"loss per token": next_token_loss}, ("roneneldan/TinyStories",))


def next_token_loss(scores: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean loss over the tokens of each text, `(N,)`."""
    return F.cross_entropy(scores[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)


MODELS: dict[str, Callable[[int], Release]] = {
    "stories260k-four-blocks": language_model,
    "resnet20-cifar10-half": lambda samples: resnet("ResNet-20", samples),
    "resnet56-cifar10-half": lambda samples: resnet("ResNet-56", samples),
}


def write_release(name: str, folder: Path, samples: int, license: str | None) -> Path:
    """Make a pruned model and write its folder.

    Args:
        name: Name of the model.
        folder: Parent of the model's folder.
        samples: Number of samples of the test split to score on.
        license: Licence of the weights, for the card; None: the card has none.
    """
    made = MODELS[name](samples)
    report = compare(
        made.dense, made.network, made.scored[0], batches=made.scored, metric=made.metric, plan=made.plan, threads=1
    )
    path = save_pruned(made.network, made.plan, folder / name)
    if name.startswith("stories"):
        stories260k()[1].save_pretrained(path)
    save_model_card(path, report, license=license, datasets=made.datasets)
    files = sorted(file for file in path.iterdir() if file.name != SUMS)
    write_text(path / SUMS, "".join(f"{sha256_of(file)}  {file.name}\n" for file in files))
    return path


def main() -> None:
    """Write the folders."""
    options = command_line(__doc__)
    options.add_argument("--output", type=Path, default=Path("release"), help="where the folders go")
    options.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS, help="which (default: all)")
    options.add_argument("--samples", type=int, default=10_000, help="of the test split, at most (default: all)")
    options.add_argument("--license", help="of the weights, as the hub calls it, for the cards")
    chosen = options.parse_args()
    for name in chosen.models:
        print(f"Wrote {write_release(name, chosen.output, chosen.samples, chosen.license)}")


if __name__ == "__main__":
    main()
