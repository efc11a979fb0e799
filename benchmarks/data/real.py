"""Real data and weights for the benchmarks: one folder, named by PRUNERECOVER_DATA."""

from __future__ import annotations

import argparse
import base64
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from prunerecover import Plan
from prunerecover.cost.environment import cpu_name, versions
from prunerecover.cost.statistics import paired_difference, wilson_interval
from prunerecover.files.atomic import write_text
from prunerecover.recipes.data.image_data import ImageData

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
INSTRUCTIONS: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not known to older releases of torch
CHECKPOINTS = ROOT / "checkpoints"  # what is too large to keep with the results
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # networks are fitted and scored here
BF16 = DEVICE.type == "cuda" or any(INSTRUCTIONS.get(name) for name in ("amx_bf16", "avx512_bf16"))  # else far slower


def data_root() -> Path:
    """Return the folder with `data/` and `models/`; exit with a message if it is not named."""
    root = os.environ.get("PRUNERECOVER_DATA")
    if not root or not Path(root, "data").is_dir():
        sys.exit("Set PRUNERECOVER_DATA to the folder that holds data/ and models/.")
    return Path(root)


def deit_tiny(**options: Any) -> nn.Module:
    """Load DeiT-Tiny (ImageNet-1k), with further options of `timm.create_model`."""
    name = f"local-dir:{data_root() / 'models' / 'deit_tiny_patch16_224'}"
    return timm.create_model(name, pretrained=True, **options).eval()


def image_data(name: str, **kwargs: Any) -> ImageData:
    """Return one of the image sets with DeiT-Tiny's transforms, not augmented."""
    model = f"local-dir:{data_root() / 'models' / 'deit_tiny_patch16_224'}"
    return ImageData(str(data_root() / "data" / name), model=model, **kwargs)


def photos(folder: str) -> Tensor:
    """Read a folder of unlabelled photos with DeiT-Tiny's evaluation transform, `(N, 3, 224, 224)`."""
    model = deit_tiny()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    paths = sorted((data_root() / "data" / "coco128" / folder).glob("*.jpg"))
    return torch.stack([transform(Image.open(path).convert("RGB")) for path in paths])


def autocast() -> torch.autocast:
    """Return a context in which networks run in bf16, if the device multiplies in it, which takes half the time."""
    return torch.autocast(DEVICE.type, torch.bfloat16, enabled=BF16)


def correct(model: nn.Module, loader: Iterable[Any], classes: Tensor | None = None) -> Tensor:
    """Return per-sample correctness `(N,)`; `classes` restricts a larger head to a subset, in label order."""
    hits = []
    with torch.inference_mode():
        for images, labels in loader:
            logits = model.to(DEVICE).eval()(images.to(DEVICE)).cpu()
            logits = logits if classes is None else logits[:, classes]
            hits.append(logits.argmax(1) == labels)
    return torch.cat(hits)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a command line whose help is a module's docstring; benchmarks add their options to it."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def command() -> str:
    """Return how the running benchmark was called."""
    module = ".".join(Path(sys.argv[0]).resolve().relative_to(ROOT).with_suffix("").parts)
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def packed(values: NDArray[np.float64]) -> str:
    """Return hits as text, 8 to a byte."""
    return base64.b64encode(np.packbits(values.astype(bool)).tobytes()).decode()


def unpacked(text: str, n: int) -> NDArray[np.float64]:
    """Return hits that `packed` wrote."""
    return np.unpackbits(np.frombuffer(base64.b64decode(text), dtype=np.uint8))[:n].astype(np.float64)


def packed_numbers(values: NDArray[np.float64]) -> str:
    """Return numbers as text, in single precision; a JSON number each would fill megabytes."""
    return base64.b64encode(values.astype(np.float32).tobytes()).decode()


def unpacked_numbers(text: str) -> NDArray[np.float64]:
    """Return numbers that `packed_numbers` wrote."""
    return np.frombuffer(base64.b64decode(text), dtype=np.float32).astype(np.float64)


def accuracy(values: NDArray[np.float64]) -> dict[str, Any]:
    """Return what a row says of hits `(n,)`: top-1 in percent with Wilson's 95% interval, and the hits, packed."""
    found = wilson_interval(int(values.sum()), len(values))
    interval = {"top1": 100 * found.value, "ci_low": 100 * found.low, "ci_high": 100 * found.high}
    return {**interval, "n": len(values), "hits": packed(values)}


def ahead_by(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> str:
    """Return by how many points ours is ahead on the same samples, with the paired 95% interval."""
    found = paired_difference(theirs, ours, seed=0)
    return f"{100 * found.value:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def stored(name: str, key: str = "rows") -> list[dict[str, Any]]:
    """Return what earlier runs of a resumable benchmark left in its results."""
    path = RESULTS / f"{name}.json"
    return list(json.loads(path.read_text()).get(key, [])) if path.is_file() else []


def kept_plan(path: Path, make: Callable[[], Plan]) -> Plan:
    """Return the plan that an earlier run saved, or make and save it."""
    if path.is_file():
        return Plan.load(path)
    plan = make()
    plan.save(path)
    return plan


def made_by(commands: list[str]) -> list[str]:
    """Return lines of Markdown that name the commands behind a page."""
    return ["Made by:", "", *(f"- `{command}`" for command in commands), ""]


def commands_so_far(name: str) -> list[str]:
    """Return the commands that made a resumable benchmark's results, the running one last."""
    earlier: list[Any] = stored(name, "commands")
    return [*(other for other in earlier if other != command()), command()]


def write(name: str, result: dict[str, Any], markdown: str, folder: Path | None = None) -> None:
    """Write JSON and Markdown results into a folder, `RESULTS` unless given, with what they were measured with."""
    record = {
        "command": command(),
        "cpu": cpu_name(),
        "versions": versions(),
        **result,
    }
    for file, text in ((f"{name}.json", json.dumps(record, indent=2) + "\n"), (f"{name}.md", markdown.rstrip() + "\n")):
        write_text((folder or RESULTS) / file, text)  # a run that is killed leaves the results of before
