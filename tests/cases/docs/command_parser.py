"""Parser of all commands of LightningCLI, the slowest part of a start."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch.cli import LightningArgumentParser

from prunerecover.recipes.cli.lightning_cli import PlanTrainer, RecipeCLI


class UpToTheParser(RecipeCLI):
    """Command line up to the parser."""

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        raise StopIteration(parser)


def command_parser() -> LightningArgumentParser:
    with pytest.raises(StopIteration) as made:
        UpToTheParser(trainer_class=PlanTrainer, seed_everything_default=1, args=[])
    parser: LightningArgumentParser = made.value.value
    return parser
