"""The recipes in a table, from the headers of configs/*.yaml: docs/recipes.md is written.

    python -m benchmarks.project.recipe_table

Takes a second. A test compares the page with the output of this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.runner.benchmark import command_line
from benchmarks.runner.rows import ROOT
from prunerecover.display.markdown import table

PAGE = ROOT / "docs" / "recipes.md"
HEADER = re.compile(
    r"prunerecover fit --config (?P<name>\w+) (?:Measured (?P<measured>.*?)\. Hardware: |"
    r"Not run by us(?: \((?P<known>.*?)\))?: it would take )(?P<where>.*?)\.?\n\n(?P<about>.*?)(?:\n\n|$)",
    re.DOTALL,
)
OPENING = """# Recipes

Written by `python -m benchmarks.project.recipe_table` from the headers of `configs/*.yaml`; a test holds it to them.
Every value of a recipe can be overridden on the command line, and a copy of the file is a recipe of your own.
Recipes need `pip install "prunerecover[recipes]"`. Accuracies, mIoU and mAP are shares of 1.
Without a measured metric, the last column has the needed hardware and time.

```bash
prunerecover fit --config digits_vit_depth --trainer.max_epochs 50
prunerecover fit --config digits_vit_depth --print_config
```

## On a small machine

Fewer steps and fewer samples to plan on end in the same report, within minutes on two cores, at the price of accuracy:

```bash
prunerecover fit --config resnet56_width_cifar10 --trainer.max_epochs 1 --trainer.limit_train_batches 20
prunerecover fit --config deit_tiny_imagenet200_depth --data.limit_train 200 --trainer.limit_val_batches 10
prunerecover fit --config segmenter_width_camvid --trainer.max_epochs 2 --trainer.limit_train_batches 10 \\
  --trainer.callbacks.WidthPrune.schedule 1 --trainer.callbacks.WidthPrune.calibration 16
prunerecover fit --config ssdlite_width_coco --trainer.max_epochs 1 --trainer.limit_train_batches 10 \\
  --data.batch_size 4 --trainer.limit_val_batches 4 --trainer.callbacks.WidthPrune.calibration 16
prunerecover fit --config smollm2_depth_lora --trainer.limit_train_batches 50 --data.batch_size 2
```

`--trainer.accelerator cpu` keeps a GPU out of it, `--trainer.callbacks.PruneReport.pairs 5` times fewer passes.

"""
HEADS = ("recipe", "what it does", "by", "measured", "hardware and time")
TASKS = {
    "DigitsClassifier": "Without a download",
    "ImageClassifier": "Images",
    "ImageSegmenter": "Segmentation",
    "ObjectDetector": "Detection",
    "CausalLM": "Language",
}


@dataclass(frozen=True)
class Recipe:
    """Recipe with the parts of the header.

    Attributes:
        name: Name for `--config`.
        measured: Measured metric in the header; empty: the recipe was not run.
        known: Figures of others in the header of a recipe that was not run.
        where: Hardware and time in the header.
        about: First paragraph of the header.
        task: Class of the LightningModule.
        callbacks: Classes of the callbacks for pruning and recovery.
    """

    name: str
    measured: str
    known: str
    where: str
    about: str
    task: str
    callbacks: tuple[str, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of the table."""
        what, by = self.about.split(". ")[0].removesuffix("."), ", ".join(f"`{name}`" for name in self.callbacks)
        figures = self.measured or ("not run by us" + (f" ({self.known})" if self.known else ""))
        where = self.where if self.measured else f"would take {self.where}"
        return f"`{self.name}`", f"{what}.", by, with_links(figures), where


def read_recipe(path: Path) -> Recipe:
    """Return a recipe.

    Raises:
        ValueError: If the header has another form.
    """
    text = path.read_text()
    header = "\n".join(line.removeprefix("#").strip() for line in text.split("seed_everything:")[0].splitlines())
    found = HEADER.match(re.sub(r"(?<!\n)\n(?!\n)", " ", header))
    if found is None:
        raise ValueError(
            f"Expected {path.name} to open with its command, what was measured or what it would take, and what it does."
        )
    parts = {name: value or "" for name, value in found.groupdict().items()}
    recipe: dict[str, Any] = yaml.safe_load(text)
    names = (callback["class_path"] for callback in recipe["trainer"]["callbacks"])
    doing = tuple(name for name in names if name.endswith(("Prune", "Recover")))
    return Recipe(**parts, task=recipe["model"]["class_path"], callbacks=doing)


def with_links(text: str) -> str:
    """Return a header's text with links to pages of results."""
    return re.sub(r"docs/results/(\w+\.md)", r"[results](results/\1)", text)


def markdown(folder: Path) -> str:
    """Return the page."""
    recipes = [read_recipe(path) for path in sorted(folder.glob("*.yaml"))]
    page = OPENING
    for task, title in TASKS.items():
        rows = [recipe.cells for recipe in recipes if recipe.task == task]
        page += f"## {title}\n\n{table(HEADS, rows)}\n\n"
    return page.rstrip() + "\n"


def main() -> None:
    """Write the page."""
    command_line(__doc__).parse_args()
    PAGE.write_text(markdown(ROOT / "configs"))
    print(f"Wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
