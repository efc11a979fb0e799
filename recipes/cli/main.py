"""Entry point of the command line: help and dispatch, without importing torch.

`fit`, `validate`, `test`, `predict` and `plan` run a recipe on LightningCLI; `quickstart`, `report` and `export` are
plain commands. The module of a command is imported only when chosen, for a quick `prunerecover --help`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from pkgutil import resolve_name

from prunerecover.recipes.cli.trainer_commands import TRAINER_COMMANDS, with_values
from prunerecover.recipes.data.needed import check_installed
from prunerecover.version import __version__

EPILOG = """\
recipes (--config NAME or a path to YAML; every value can be overridden on the command line):
  {recipes}

examples:
  prunerecover quickstart
  prunerecover fit --config digits_vit_depth --trainer.max_epochs 50 --trainer.callbacks.DepthPrune.schedule 30
  prunerecover plan --config digits_vit_depth --ckpt_path dense.ckpt
  prunerecover plan --config digits_vit_depth --ckpt_path dense.ckpt --method sites
  prunerecover plan --config digits_vit_depth --ckpt_path dense.ckpt --method boundary --method.n_remove 5
  prunerecover plan --config digits_vit_depth --ckpt_path dense.ckpt --method width --method.macs 0.3
  prunerecover test --config digits_vit_depth --ckpt_path path/to/last.ckpt
  prunerecover report report/report.json

A callback of the recipe is addressed by its name: --trainer.callbacks.DepthPrune.remove '{{"attention": 1}}'. A second
--config replaces a whole list such as the callbacks; to add one, use --trainer.callbacks+=DepthPrune.
`prunerecover COMMAND --help` lists the options of a command, `prunerecover plan --method.help depth` those of a method:
depth, graph, boundary, boundary_dpt, width, per_cost, fair_pruner, joint, frontier, pudding, sensitivity or sites."""

# Functions of the commands without a trainer.
PLAIN_COMMANDS = {
    "quickstart": "prunerecover.recipes.quickstart:run_quickstart",
    "report": "prunerecover.recipes.cli.main:show_report",
    "export": "prunerecover.recipes.cli.export:export",
}


def recipe_names() -> list[str]:
    """Return the names of the shipped recipes.

    >>> "digits_vit_depth" in recipe_names()
    True
    """
    folder = files("prunerecover.configs")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def recipe_path(name: str) -> str:
    """Return the path of a shipped recipe by name; an existing path is returned unchanged.

    Raises:
        ValueError: If `name` is neither.
    """
    if Path(name).is_file():
        return name
    if name in recipe_names():
        return str(files("prunerecover.configs").joinpath(f"{name}.yaml"))
    raise ValueError(
        f"Expected --config to be a YAML file or the name of a recipe, but got {name!r}. "
        f"Recipes: {', '.join(recipe_names())}."
    )


def with_recipe_paths(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with recipe names after `--config` (or `-c`) replaced by paths.

    Raises:
        ValueError: If a value is neither a file nor the name of a recipe.
    """
    return with_values(arguments, ("--config", "-c"), recipe_path)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the top level and of the plain commands."""
    parser = argparse.ArgumentParser(
        prog="prunerecover",
        description="Prune a model that you train with Lightning, recover its quality, get a smaller ordinary model.",
        epilog=EPILOG.format(recipes="\n  ".join(recipe_names())),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"prunerecover {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, description in TRAINER_COMMANDS.items():
        commands.add_parser(name, help=description, add_help=False)
    text = "train a small ViT on digits, prune it, recover it and compare: no download, a few minutes on a laptop"
    command = commands.add_parser("quickstart", help=text, description=text)
    command.add_argument("--seeds", type=int, default=3, help="number of runs to average (default: 3)")
    command.add_argument("--output", default="report", help="folder to write (default: report)")
    text = "show a saved report.json on the terminal"
    command = commands.add_parser("report", help=text, description=text)
    command.add_argument("path", help="a report.json, or its folder")
    _add_export(commands)
    return parser


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = (
        "write a pruned checkpoint as ONNX, a program of torch.export, GGUF for llama.cpp, or a folder for load_pruned"
    )
    parser = commands.add_parser("export", help=text, description=text)
    parser.add_argument("path", help="a Lightning .ckpt, or a folder made by save_pruned")
    parser.add_argument("--output", required=True, help="a file that ends in .onnx, .pt2 or .gguf, or a folder")
    parser.add_argument("--unmerged", action="store_false", dest="merged", help="keep mergeable linears apart")
    parser.add_argument(
        "--model",
        metavar="CLASS",
        help="class path of the LightningModule, or of a callable without arguments that builds the dense network; "
        "needed for networks of your own, and where the module computes more than the pruned network",
    )
    parser.add_argument("--target", metavar="PATH", help="module to export, such as network.backbone (default: all)")
    parser.add_argument(
        "--input-size", type=int, nargs="+", metavar="N", help="shape of an input, such as 3 224 224 (default: known)"
    )
    parser.add_argument(
        "--batch-size", type=int, default=2, help="batch size of the example input; the only one with --fixed-sizes"
    )
    parser.add_argument(
        "--fixed-sizes",
        action="store_false",
        dest="dynamic",
        help="export for the example input's sizes alone, if other sizes fail",
    )
    parser.add_argument(
        "--format",
        metavar="NAME",
        help="gguf-q8_0 or gguf-f32 (GGUF in 8 or 32 bits), or nemotron-nas, a folder (default: by the ending)",
    )
    parser.add_argument(
        "--tokenizer", metavar="NAME", help="hub name or folder of the tokenizer, for GGUF and nemotron-nas"
    )


def show_report(path: str) -> None:
    """Print a saved report as Markdown, rendered for the terminal.

    Args:
        path: File `report.json`, or its folder.

    Raises:
        ValueError: If the file does not exist, or is no report.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from prunerecover.report.report import Report

    if not Path(path).exists():
        raise ValueError(f"Expected a report at {path}, but there is none. `prunerecover quickstart` writes one.")
    Console().print(Markdown(Report.load(path).to_markdown()))


def _runner(command: str) -> Callable[..., object]:
    """Import the function of a plain command, with the command's options as arguments."""
    if command == "export":
        _let_import_from_here()
    return resolve_name(PLAIN_COMMANDS[command])  # type: ignore[no-any-return]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Args:
        arguments: Arguments without the program's name; None takes them from `sys.argv`.

    Returns:
        0, or 2 after an error that the user can mend, printed in one line; bugs keep their traceback.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(arguments)
    except Exception as error:
        from prunerecover.recipes.cli.errors import told_to_user

        told = told_to_user(error)
        if told is None:
            raise
        print(f"prunerecover: error: {' '.join(str(told).split())}", file=sys.stderr)
        return 2


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] not in TRAINER_COMMANDS:
        options = vars(build_parser().parse_args(arguments))
        _runner(options.pop("command"))(**options)
        return 0
    resolved = [arguments[0], *with_recipe_paths(arguments[1:])]
    _let_import_from_here()
    check_installed("jsonargparse", "datasets")
    from prunerecover.recipes.cli.lightning_cli import run

    run(resolved)
    return 0


def _let_import_from_here() -> None:
    """Put the working directory last on the import path, so that no file there hides a library."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
