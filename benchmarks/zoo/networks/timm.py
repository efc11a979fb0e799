"""Networks of timm by `timm.yaml`: one of nearly every family."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import timm
import yaml

from benchmarks.zoo.networks.network import CLASSES, Network, images


def networks() -> list[Network]:
    """Return the suite."""
    listed = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    made = [(name, side, {}) for side, names in listed["convolutional"].items() for name in names]
    made += [(name, kwargs.pop("side", 64), kwargs) for name, kwargs in listed["transformers"].items()]
    build = partial(timm.create_model, pretrained=False, num_classes=CLASSES)
    return [Network(name, partial(build, name, **kwargs), images(side)) for name, side, kwargs in made]
