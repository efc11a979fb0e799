"""Help of the commands that run a recipe: our options first, Lightning's options on request.

`prunerecover COMMAND --help` fills a page; `prunerecover COMMAND --trainer.help` adds Lightning's options.
"""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from jsonargparse import DefaultHelpFormatter

from prunerecover.recipes.cli.names import ADDRESSABLE, CLASSES
from prunerecover.recipes.cli.trainer_commands import CALLBACK_HELP, TRAINER_COMMANDS

TRAINER_HELP = "--trainer.help"
LIGHTNING = ("trainer", "optimizer", "lr_scheduler")
# Titles of the groups of options in their order, by LightningCLI's names.
TITLES = {
    "plan": "the method, the weights and samples to plan by, and the file of the plan",
    "model": "the LightningModule",
    "data": "the data",
    **dict.fromkeys(("fit", "validate", "test", "predict"), "the run"),
    "trainer": "Lightning's Trainer",
    "optimizer": "an optimizer in the place of the module's own",
    "lr_scheduler": "a schedule of its learning rate",
}
WIDTH = 100  # characters per line of the list of methods


def _named(key: str, names: Iterable[str], example: str) -> str:
    """Return the help of an option with a class as value."""
    listed = ", ".join(names)
    return f"{listed}, or a class path. `--{key}.help NAME` lists its options, such as --{key}.{example}."


SAID = {
    "config": "Name of a recipe, or path of a YAML file; among several, values of later files count.",
    "model": _named("model", (c.__name__ for c in ADDRESSABLE if issubclass(c, pl.LightningModule)), "learning_rate"),
    "data": _named("data", (c.__name__ for c in ADDRESSABLE if issubclass(c, pl.LightningDataModule)), "batch_size"),
    "method": _named("method", CLASSES, "seed"),
}


class FullHelp(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Formatter that lists all options; an option with a class shows names of classes, not where they are defined."""

    def _get_help_string(self, action: argparse.Action) -> str:
        return SAID.get(action.dest) or super()._get_help_string(action)


class ShortHelp(FullHelp):
    """Formatter without Lightning's options."""

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        """Add the options of a group."""
        super().add_arguments([action for action in actions if _is_ours(action.dest)])


def help_of(command: str, whole: bool) -> dict[str, Any]:
    """Return arguments of LightningCLI's parsers for the help of a command.

    Args:
        command: Name of the command.
        whole: Whether Lightning's options are listed, too.
    """
    plans = command == "plan"
    said = [f"{TRAINER_COMMANDS[command].capitalize()}.", *([_methods()] if plans else [])]
    return {
        "prog": "prunerecover",
        "formatter_class": FullHelp if whole else ShortHelp,
        command: {
            "usage": f"prunerecover {command} [--config RECIPE]{' [--method NAME]' if plans else ''} [options]",
            "description": "\n\n".join(said),
            "epilog": CALLBACK_HELP if whole else f"{CALLBACK_HELP}\n\n{_trainer_help(command)}",
        },
    }


def ours_first(named: Mapping[str, Any], groups: Sequence[Any]) -> list[Any]:
    """Return groups of options in the order of the help, with titles for their subjects.

    Args:
        named: Groups by LightningCLI's names.
        groups: All groups in the order of creation.
    """
    for name, title in TITLES.items():
        if name in named:
            named[name].title = title
    order = ["options", *TITLES.values()]
    return sorted(groups, key=lambda group: order.index(group.title) if group.title in order else len(order))


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] not in LIGHTNING


def _methods() -> str:
    """Return the methods of `plan`, each with a description."""
    lines = ["methods:"]
    for name, method in CLASSES.items():
        does = (inspect.getdoc(method) or "").partition("\n")[0]
        lines += textwrap.wrap(f"{name:<20}{does}", WIDTH, initial_indent="  ", subsequent_indent=" " * 22)
    return "\n".join(lines)


def _trainer_help(command: str) -> str:
    return (
        "Lightning's own options, such as --trainer.max_epochs, --trainer.devices and --optimizer, are listed by\n"
        f"`prunerecover {command} {TRAINER_HELP}`, and those of a callback by --trainer.callbacks.help DepthPrune."
    )
