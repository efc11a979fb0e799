"""The command line: quick help, recipes by name, every shipped recipe parses, and each command works as described."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from cases.docs.command_parser import command_parser
from cases.paths import ROOT
from cases.sampling import one_in
from lightning.pytorch.cli import LightningArgumentParser

from prunerecover.recipes.cli.main import main, recipe_names, recipe_path
from prunerecover.recipes.cli.names import CLASSES

CONFIGS = ROOT / "configs"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished `fit` of a recipe like digits_vit_depth, but of 2 epochs of a few steps."""
    folder = tmp_path_factory.mktemp("fit")
    recipe = yaml.safe_load((CONFIGS / "digits_vit_depth.yaml").read_text())
    recipe["trainer"] |= {"max_epochs": 2, "limit_train_batches": 3, "log_every_n_steps": 1}
    recipe["trainer"] |= {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": str(folder)}
    prune = recipe["trainer"]["callbacks"][0]["init_args"]
    prune |= {"remove": {"activation": 1, "attention": 1}, "schedule": {"start": 1}, "calibration": 32}
    recipe["model"]["init_args"] = {"depth": 3, "embed_dim": 16, "num_heads": 2}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    logger = ["--trainer.logger=CSVLogger", f"--trainer.logger.save_dir={folder}"]
    assert main(["fit", "--config", str(folder / "recipe.yaml"), *logger]) == 0
    return folder


def last_checkpoint(folder: Path) -> str:
    return str(next(folder.rglob("last.ckpt")))


def test_what_runs_nothing_imports_no_library() -> None:
    """The same holds for the wrong name of a recipe, reported before anything is loaded."""
    commands = (["--help"], ["--version"], ["export", "--help"], ["fit", "--config", "no_such"])
    heavy = ("torch", "lightning", "timm", "transformers", "numpy", "matplotlib", "yaml", "jsonargparse")
    script = (
        "import runpy, sys\n"
        f"for arguments in {commands}:\n"
        "    sys.argv[1:] = arguments\n"
        "    try: runpy.run_module('prunerecover', run_name='__main__')\n"
        "    except SystemExit: pass\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
    shown = ("fit", "validate", "test", "predict", "plan", "quickstart", "report", "export", *recipe_names())
    assert all(word in result.stdout for word in (*shown, "\nprunerecover 0.", "--fixed-sizes"))
    assert "YAML file or the name of a recipe, but got 'no_such'. Recipes: " in result.stderr


def help_of(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit) as stopped:
        main([command, option])
    assert not stopped.value.code
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("command", [pytest.param("fit", marks=pytest.mark.slow), "plan"])
def test_help_of_a_command_is_a_page_of_what_is_ours(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = help_of(command, "--help", capsys)
    assert lines[0].startswith(f"usage: prunerecover {command} [--config RECIPE]")
    assert lines[1] == ""
    assert len(lines) < 100
    text = "\n".join(lines)
    assert all(name in text for name in ("DigitsClassifier", "ImageData", f"prunerecover {command} --trainer.help"))
    assert "--trainer.devices DEVICES" not in text
    assert "class '" not in text
    methods = [line.split()[0] for line in lines[5:30] if re.match(r"  \w", line)]
    assert methods[: len(CLASSES)] == (list(CLASSES) if command == "plan" else [])


@pytest.mark.slow
def test_options_of_lightning_come_last_where_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(help_of("plan", "--trainer.help", capsys))
    places = [text.index(f"\n  {option}") for option in ("--method", "--model", "--trainer.devices", "--optimizer")]
    assert places == sorted(places)


@pytest.fixture(scope="module")
def parser() -> LightningArgumentParser:
    return command_parser()


@pytest.mark.parametrize(("name", "command"), one_in(4, zip(recipe_names(), itertools.cycle(["fit", "test", "plan"]))))
@pytest.mark.usefixtures("in_tmp")
def test_every_recipe_parses(name: str, command: str, parser: Any, capsys: pytest.CaptureFixture[str]) -> None:
    if "yolo" in name:
        pytest.importorskip("ultralytics")
        capsys.readouterr()  # where it keeps its settings, the first time that it is imported
    with pytest.raises(SystemExit) as stopped:
        parser.parse_args([command, "--config", str(recipe_path(name)), "--print_config"])
    assert not stopped.value.code
    parsed = yaml.safe_load(capsys.readouterr().out)
    names = [c["class_path"].rpartition(".")[2] for c in parsed["trainer"]["callbacks"]]
    averaged = ["EMAWeightAveraging"] if "boundary" in name else []
    prune = ["WidthPrune"] if "_width_" in name else ["DepthPrune"]
    distill = ["DistillRecover"]
    if "_lora" in name:
        language = parsed["model"]["class_path"].endswith("CausalLM")
        prune, distill = (prune, ["LoRARecover"]) if language else ([*prune, "WidthPrune", "LoRARecover"], distill)
    expected = [*prune, *distill, *averaged, "PruneReport", "ModelCheckpoint"]
    assert names == (["RoutedLoRARecover", "ModelCheckpoint"] if "_pudding_" in name else expected)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_opens_with_its_command(name: str) -> None:
    """The header also has the measured metric with its page and the hardware, or the cost of a run, and the time."""
    command, *lines = (CONFIGS / f"{name}.yaml").read_text().splitlines()
    about = " ".join(line.removeprefix("# ") for line in itertools.takewhile("#".__ne__, lines))
    assert command == f"# prunerecover fit --config {name}"
    measured = r"Measured (val|test)_(top1|miou|map|perplexity|acc_norm): .* \(docs/results/\w+\.md\)\. Hardware: "
    assert re.match(rf"({measured}|Not run by us.*: it would take ).*(hour|minute)", about)


def run_on(fitted: Path, command: str, *options: str) -> int:
    return main([command, "--config", str(fitted / "recipe.yaml"), "--trainer.logger=false", *options])


@pytest.mark.slow
def test_fit_leaves_checkpoint_pruned_copy_and_report(fitted: Path) -> None:
    for name in ("last.ckpt", "pruned", "report.json", "config.yaml"):
        assert list(fitted.rglob(name)), name


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_the_other_commands_open_the_checkpoint(fitted: Path, command: str) -> None:
    assert run_on(fitted, command, "--ckpt_path", last_checkpoint(fitted)) == 0


def test_plan_refuses_a_pruned_checkpoint(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    budget = ["--method=depth", '--method.remove={"attention": 1}']
    assert run_on(fitted, "plan", *budget, "--ckpt_path", last_checkpoint(fitted)) == 2
    message = "Expected a checkpoint of the dense model at .*, but it has been pruned"
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("merged", [True, False])
def test_exported_checkpoint_gives_the_same_logits(fitted: Path, tmp_path: Path, merged: bool) -> None:
    from prunerecover import load_pruned

    options = [] if merged else ["--unmerged"]
    assert main(["export", last_checkpoint(fitted), "--output", str(tmp_path / "out"), *options]) == 0
    images = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        expected = load_pruned(last_checkpoint(fitted))(images)
        assert torch.allclose(load_pruned(tmp_path / "out")(images), expected, atol=1e-5)


def test_report_shows_what_was_saved(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from prunerecover import compare

    model = torch.nn.Linear(4, 2)
    compare(model, model, torch.zeros(2, 4), pairs=0).save(in_tmp / "saved")
    assert main(["report", "saved"]) == 0
    shown = capsys.readouterr().out
    assert "Before and after pruning" in shown
    assert "Parameters" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "none.json"], "Expected a report at"),
        (["export", "none", "--output", "out"], "does not exist"),
        (["export", "last.ckpt", "--output", "model.pt"], "Expected an output that ends in one of .onnx, .pt2, .g"),
    ],
)
def test_refused_files(in_tmp: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(in_tmp.iterdir())
