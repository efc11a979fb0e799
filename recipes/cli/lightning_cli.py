"""Commands `fit | validate | test | predict | plan` on LightningCLI.

Imported classes are addressed by short names (`ImageClassifier`, `DepthPrune`), a user's classes by class path.
Pitfalls of LightningCLI are settled here: no callback is forced (a forced callback would double one in the recipe), the
arguments of `plan` belong to that command alone, and a config.yaml of an earlier run never stops a run.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import lightning.pytorch as pl
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from prunerecover.callbacks.ledger.lightning_corrections import make_leaves_quietly
from prunerecover.callbacks.planning.base import planning_progress
from prunerecover.plan.plan import Plan
from prunerecover.recipes.cli.callback_options import with_callback_options
from prunerecover.recipes.cli.errors import in_one_line
from prunerecover.recipes.cli.help import TRAINER_HELP, help_of, ours_first
from prunerecover.recipes.cli.names import with_method_class
from prunerecover.recipes.cli.trainer_commands import TRAINER_COMMANDS
from prunerecover.recipes.plan_methods.base import PlanMethod
from prunerecover.recipes.plan_methods.run import method_of, plan_with


class PlanTrainer(pl.Trainer):
    """Trainer with a further entry point, `plan`."""

    def plan(
        self,
        model: pl.LightningModule,
        method: PlanMethod | None = None,
        datamodule: pl.LightningDataModule | None = None,
        output: str = "plan.json",
        callback: str | None = None,
        calibration: int | None = None,
        target: str | None = None,
        ckpt_path: str | None = None,
    ) -> None:
        """Choose the units to remove and write the plan; the model stays unchanged.

        Args:
            model: Module with the network.
            method: Method and budget of the plan (`--method depth`, `graph`, `boundary`, `boundary_dpt`,
                `width`, `per_cost`, `fair_pruner`, `joint`, `pudding`, `sensitivity`, `sites`, `frontier`, or a class
                path); default: the recipe's pruning callback.
            datamodule: Source of calibration batches; default: the module's training loader.
            output: File of the plan.
            callback: Name of the pruning callback to plan by, such as `DepthPrune`; needed only for a recipe with
                several.
            calibration: Number of training samples to calibrate on; default: the callback's number, or 192.
            target: Path of the network in the module; needed only if several networks suit the method.
            ckpt_path: Checkpoint with the weights to plan for; default: the module's weights.
        """
        if method is None:
            method = method_of(self.callbacks, callback)  # type: ignore[attr-defined]
        make = partial(plan_with, method, model, datamodule, calibration, target, ckpt_path)
        launcher = self.strategy.launcher
        if launcher is None:
            self._plan(Path(output), method, make)
        else:
            launcher.launch(self._plan, Path(output), method, make, trainer=self)

    def _plan(self, output: Path, method: PlanMethod, make: Callable[..., Plan]) -> None:
        """Plan on every rank, with the trials of a search shared among ranks; the first rank writes."""
        self.strategy.setup_environment()
        reset_seed()  # as in the setup of several ranks: a single rank draws the same calibration samples
        device = self.strategy.root_device
        with planning_progress(self, "planning"):
            plan = make(device, output)
        if self.is_global_zero:
            method.write(plan, output)
            print(method.written(plan, output))
        self.strategy.barrier()


class RecipeParser(LightningArgumentParser):
    """LightningCLI's parser with errors in one line, and our options first in the help."""

    def format_help(self, *formatter: Any) -> str:
        """Return the help; for a class outside any command, without a usage line."""
        self.usage = self.usage or argparse.SUPPRESS
        self._action_groups = ours_first(self.groups or {}, self._action_groups)
        return super().format_help(*formatter)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the message and exit with 2."""
        if not self.exit_on_error:
            super().error(message, ex)
        of_method = message.startswith('Parser key "method"')  # the parser may know no command
        named = (c for c in TRAINER_COMMANDS if self.prog.endswith(f" {c}") or f" {c}." in message)
        command = "plan" if of_method else next(named, None)
        hint = ""
        if command is not None:
            about = "--method.help NAME" if of_method else "--help"
            hint = f"`prunerecover {command} {about}` lists the options."
            message = message.replace(f" {command}.", " --")
        print(f"prunerecover: error: {in_one_line(message)} {hint}".rstrip(), file=sys.stderr)
        self.exit(2)


class RecipeCLI(LightningCLI):
    """LightningCLI with the `plan` command."""

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, and check the checkpoint before anything is built.

        Raises:
            FileNotFoundError: If the checkpoint does not exist.
            ValueError: If the file is no checkpoint of a Trainer.
        """
        super().parse_arguments(parser, args)
        _check_checkpoint(self.config[self.config["subcommand"]].get("ckpt_path"))

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return Lightning's commands but `tune`, and `plan`."""
        return {**LightningCLI.subcommands(), "plan": {"model", "datamodule"}}


def _check_checkpoint(path: str | None) -> None:
    if not path or "://" in path or path in ("best", "last", "hpc", "registry") or path.startswith("registry:"):
        return
    if not Path(path).exists():
        raise FileNotFoundError(f"Expected a checkpoint at --ckpt_path {path}, but there is none.")
    if Path(path).is_file() and not zipfile.is_zipfile(path):
        raise ValueError(
            f"Expected a Lightning checkpoint at --ckpt_path {path}, but it is no file of torch.save, or cut off. Copy "
            "it again, or name another."
        )


def run(arguments: Sequence[str], **options: Any) -> RecipeCLI:
    """Run a command without looking up the options of the other commands, which take most of the start.

    Args:
        arguments: Command and options, with recipe names already replaced by paths.
        options: Further arguments of LightningCLI.
    """
    command, whole = arguments[0], TRAINER_HELP in arguments
    asked = ["--help" if argument == TRAINER_HELP else argument for argument in arguments]

    class CommandCLI(RecipeCLI):
        @staticmethod
        def subcommands() -> dict[str, set[str]]:
            return {command: RecipeCLI.subcommands()[command]}

    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # for calls inside LightningCLI
    warnings.filterwarnings("ignore", message="LightningCLI's args parameter")  # names are resolved in the arguments
    make_leaves_quietly()
    return CommandCLI(
        trainer_class=PlanTrainer,
        save_config_kwargs={"overwrite": True},
        seed_everything_default=1,
        args=with_callback_options(with_method_class(asked)),
        parser_class=RecipeParser,
        parser_kwargs=help_of(command, whole),
        **options,
    )
