"""`prunerecover plan --method per_cost | fair`: what it writes, that `WidthPrune` decides alike, and how it says no."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import yaml
from cases.models.habits import Plain
from cases.models.tiny import tiny_mixture
from cases.width.scores import removable
from matplotlib.figure import Figure
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from prunerecover import Budget, Plan, apply_plan
from prunerecover.callbacks import WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.trials.nested import at_start_of_fit
from prunerecover.cost.macs import count_macs
from prunerecover.recipes.cli.main import main
from prunerecover.recipes.data.digits import DigitsData
from prunerecover.recipes.plan_methods import width as width_plan
from prunerecover.recipes.plan_methods.width import FairPlan
from prunerecover.recipes.tasks.image_classifier import ImageClassifier
from prunerecover.width.arguments import WidthConfig
from prunerecover.width.planner import WidthPlanner

IMAGE = torch.zeros(1, 1, 8, 8)
NETWORK: dict[str, Any] = {"model": "cifar_resnet20", "num_classes": 10, "model_kwargs": {"in_chans": 1}}
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
RECIPE = {
    "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "limit_train_batches": 1, **QUIET},
    "model": {"class_path": "ImageClassifier", "init_args": NETWORK},
    "data": {"class_path": "DigitsData"},
}
FAIR = ["--method", "fair", "--method.tolerance", "0.2"]


def dense() -> ImageClassifier:
    """The module as the recipe builds it."""
    pl.seed_everything(1, verbose=False)
    return ImageClassifier(**NETWORK)


def run(folder: Path, *options: str, recipe: dict[str, Any] = RECIPE, output: str = "plan.json") -> Plan:
    """Plan by the command line."""
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    command = ["plan", "--config", str(folder / "recipe.yaml"), "--calibration", "48"]
    assert main([*command, *options, "--output", str(folder / output)]) == 0
    return Plan.load(folder / output)


@pytest.fixture(autouse=True)
def _no_other_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["prunerecover"])


@pytest.fixture(scope="module")
def fair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fair")
    run(folder, *FAIR)
    return folder


def cells(page: str, first: str) -> list[list[str]]:
    """The rows of the table whose header begins with `first`."""
    lines = page.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |")) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip(" `") for cell in line.strip("|").split("|")])
    return rows


def test_per_cost_meets_the_budget_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = run(tmp_path, "--method", "per_cost", "--method.macs", "0.3", output="deep/plan")
    network = dense().model
    before = count_macs(network, IMAGE)
    apply_plan(network, plan)
    assert 0.3 <= 1 - count_macs(network, IMAGE) / before < 0.33
    assert plan.made_by.method == "width/per_cost"
    beside = {file.name for file in (tmp_path / "deep").iterdir()}
    assert beside == {"plan", "plan.safetensors", "plan.md", "plan.kept.png", "plan.scores.safetensors"}
    gone, size = len(plan.removed["channel"]), sum(group.size for group in plan.kept_groups)
    assert f"Wrote {tmp_path / 'deep' / 'plan'}: removes {gone} of {size} channels" in capsys.readouterr().out
    page = (tmp_path / "deep" / "plan.md").read_text()
    assert f"{gone} of {size} units go. MACs per sample: {before:,} before, {plan.result.macs:,} after (-3" in page
    assert "Tolerance" not in page
    assert "with `budget={'macs': 0.3}, protection='gate_taylor', replace='calibrated'`, seed 0" in page
    assert (tmp_path / "deep" / "plan.kept.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_says_what_every_group_keeps(fair: Path) -> None:
    plan, page = Plan.load(fair / "plan.json"), (fair / "plan.md").read_text()
    rows = {row[0]: (int(row[2]), int(row[3])) for row in cells(page, "group | units")}
    assert rows == {group.name: (group.kept, group.size) for group in plan.kept_groups}
    network = dense().model
    apply_plan(network, plan)
    assert rows["layer3.1.conv1"][0] == network.layer3[1].conv1.out_channels
    assert "Networks with BatchNorm are reconstructed layer by layer first, and their statistics" in page
    assert f"Planning took {plan.evidence['search']['seconds']:.1f} s" in page


def test_the_page_of_a_tolerance_holds_its_diagnostics(fair: Path) -> None:
    plan, page = Plan.load(fair / "plan.json"), (fair / "plan.md").read_text()
    assert "Tolerance of Difference: 0.2. At most this share" in page
    kept = {row[0]: row[1] for row in cells(page, "tolerance")}
    assert kept == {t: f"{share:.1%}" for t, share in plan.evidence["kept_by_tolerance"].items()}
    masses = {row[0]: row[1:] for row in cells(page, "group | goes")}
    assert masses == {n: [f"{e:.3g}", f"{b:.3g}"] for n, (e, b) in plan.evidence["protected_mass"].items() if b > 0}
    exchange = plan.evidence["exchange"]
    verdict = "holds" if exchange["taken"] <= exchange["spared"] else "fails"
    assert f"protection score of {exchange['taken']:.3g}" in page
    assert f"The exchange condition {verdict}" in page
    assert "At the same MACs, " in page
    assert "![The two rankings](plan.ranks.png)" in page
    assert (fair / "plan.ranks.png").read_bytes().startswith(b"\x89PNG")


def test_the_scores_beside_the_plan_decide_it_again(fair: Path) -> None:
    plan, scores = Plan.load(fair / "plan.json"), load_file(fair / "plan.scores.safetensors")
    low, high = (
        {name.removeprefix(f"{signal}/"): v for name, v in scores.items() if name.startswith(f"{signal}/")}
        for signal in ("u_score", "r_score")
    )
    assert low.keys() == {group.name for group in plan.kept_groups}
    edits = {edit.unit: edit for edit in plan.edits if edit.op == "narrow"}
    for name, edit in edits.items():
        expected = low[name].argsort(stable=True)[: removable(low[name], high[name], 0.2)]
        assert list(edit.gone) == expected.sort().values.tolist()


def test_rankings_of_strata_are_those_in_which_their_experts_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes is what the figure has left of its line."""
    ids = [torch.randint(3, 61, (4, 9), generator=torch.Generator().manual_seed(i)) for i in range(4)]
    batches = [{"input_ids": rows, "labels": rows} for rows in ids]
    planner = WidthPlanner(tiny_mixture("deepseek_v3"), batches=batches, config=WidthConfig(kinds=("expert",)))
    method = FairPlan(remove={"expert": 8}, removal="random", protection="gate_taylor", replace="zero")
    plan = method._plan(planner)
    drawn: list[Any] = []
    monkeypatch.setattr(width_plan, "plot_rankings", lambda *args, **names: drawn.append(args) or Figure())
    search = {"seconds": 1.0, "peak_memory_bytes": 0}
    method.write(plan.model_copy(update={"evidence": {**plan.evidence, "search": search}}), tmp_path / "plan.json")
    assert re.search("(At|Not comparable:) the same number of parameters", (tmp_path / "plan.md").read_text())
    ((_, order, _),) = drawn
    for edit in plan.edits:
        assert order[edit.unit].argsort()[: len(edit.gone)].sort().values.tolist() == list(edit.gone)


def test_fair_meets_a_budget(tmp_path: Path) -> None:
    options = ["--method.macs=0.5", "--method.removal=gate_taylor", "--method.replace=zero"]
    plan = run(tmp_path, "--method=fair", *options)
    assert not plan.tensors
    assert 0.47 < plan.result.macs / count_macs(dense().model, IMAGE) <= 0.5
    page = (tmp_path / "plan.md").read_text()
    assert f"Tolerance of Difference: {plan.evidence['tolerance']:.4g}" in page
    signals = {name.partition("/")[0] for name in load_file(tmp_path / "plan.scores.safetensors")}
    assert signals == {"gate_taylor", "r_score"}


def test_heads_and_neurons(tmp_path: Path) -> None:
    recipe = {**RECIPE, "model": {"class_path": "DigitsClassifier", "init_args": {"depth": 2, "embed_dim": 16}}}
    plan = run(tmp_path, "--method=per_cost", "--method.params=0.3", "--method.ignore=['blocks.0.*']", recipe=recipe)
    assert set(plan.removed) <= {"head", "neuron"}
    rate, damping = plan.evidence["rates"]["head"], plan.evidence["damping"]
    told = f"Beside the saliency of neurons counts that of heads {rate:g} times, with damping {damping:g}"
    assert told in (tmp_path / "plan.md").read_text()
    only = run(tmp_path, "--method=per_cost", "--method.params=0.2", "--method.kinds=[neuron]", recipe=recipe)
    assert set(only.removed) == {"neuron"}
    assert {group.name for group in only.kept_groups} == {"blocks.0.mlp.fc1", "blocks.1.mlp.fc1"}
    counted = run(tmp_path, "--method=fair", '--method.remove={"head": 3}', recipe=recipe)
    assert {kind: len(units) for kind, units in counted.removed.items()} == {"head": 3}


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (["--method=per_cost", "--method.macs=0.3"], {"budget": Budget(macs=0.3)}),
        pytest.param(FAIR, {"allocation": "tolerance", "tolerance": 0.2}, marks=pytest.mark.slow),
    ],
)
def test_width_prune_decides_alike(tmp_path: Path, options: list[str], arguments: dict[str, Any]) -> None:
    plan = run(tmp_path, *options)
    module, settings = dense(), {**RECIPE["trainer"], "enable_checkpointing": False}
    prune = WidthPrune(**arguments, calibration=48, merge="never")
    pl.Trainer(callbacks=[prune], default_root_dir=tmp_path, **settings).fit(module, datamodule=DigitsData())
    (decided,) = Ledger.of(module).plans.values()
    assert decided.edits == plan.edits
    assert decided.tensors.keys() == plan.tensors.keys()
    assert plan.tensors


def test_the_plan_is_fitted_with(tmp_path: Path) -> None:
    plan = run(tmp_path, "--method=per_cost", "--method.macs=0.3")
    callback = {"class_path": "WidthPrune", "init_args": {"plan": str(tmp_path / "plan.json"), "calibration": 48}}
    report = {"class_path": "PruneReport", "init_args": {"pairs": 0}}
    trainer = {**RECIPE["trainer"], "callbacks": [callback, report], "default_root_dir": str(tmp_path)}
    (tmp_path / "fit.yaml").write_text(yaml.safe_dump({**RECIPE, "trainer": trainer}))
    assert main(["fit", "--config", str(tmp_path / "fit.yaml")]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    groups = plan.kept_groups
    gone, size = len(plan.removed["channel"]), sum(group.size for group in groups)
    first = next(group for group in groups if group.kept < group.size)
    start = f"- channel: {gone} of {size} ({gone / size:.0%}): `{first.name}` {first.size - first.kept} of {first.size}"
    assert start in text
    assert "In brackets" not in text
    assert "![layers.png](layers.png)" in text
    assert (tmp_path / "report" / "layers.png").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method=per_cost"], r"Expected a budget, such as Budget\(macs=0.3\)"),
        (["--method=per_cost", "--method.macs=0.3", "--method.params=0.3"], "Expected exactly one of remove"),
        (["--method=fair"], "Expected a budget or a tolerance, and not both"),
        (["--method=fair", "--method.macs=0.3", "--method.tolerance=0.1"], "Expected a budget or a tolerance"),
        (["--method=fair", "--method.tolerance=1.2"], "Expected a tolerance between 0 and 1, but got 1.2"),
        (["--method=fair", "--method.macs=0.3", "--method.removal=taylor"], "Expected argument removal among u_score"),
        (["--method=per_cost", "--method.macs=0"], "Expected a budget or a tolerance by which something goes"),
        (["--method=per_cost", "--method.macs=0.99"], "at most .* can go"),
        (["--method=per_cost", "--method.macs=0.3", "--method.ignore=['layer9.*']"], "'layer9.*' matches none"),
        (["--method=per_cost", "--method.macs=0.3", "--target=other"], "other"),
    ],
)
def test_wrong_options_leave_no_file(tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises((ValueError, SystemExit), match=message):
        run(tmp_path, *options)
    assert {file.name for file in tmp_path.iterdir()} == {"recipe.yaml"}


@pytest.mark.parametrize(("name", "option"), [("per_cost", "--method.params"), ("fair", "--method.tolerance")])
def test_help_of_a_method(capsys: pytest.CaptureFixture[str], name: str, option: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", "--method.help", name])
    assert not stopped.value.code
    shown = capsys.readouterr().out
    assert option in shown
    assert "Shell patterns of groups that stay" in shown


def test_depth_still_wants_a_network_it_knows(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected a supported network .* inside ImageClassifier, but found none"):
        run(tmp_path, "--method=depth", '--method.remove={"block": 1}')


# What the commands stand on.


def test_start_of_a_fit_trains_nothing_and_leaves_the_module_alone() -> None:
    module, data = Plain(), DigitsData()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    seen: list[pl.LightningModule] = []

    def look(trainer: pl.Trainer, copied: pl.LightningModule) -> int:
        seen.append(copied)
        assert trainer.optimizers
        assert trainer.state.fn == "fit"
        torch.rand(3)
        return trainer.global_step

    assert at_start_of_fit(module, data, look) == 0
    (copied,) = seen
    assert copied is not module
    assert all(torch.equal(value, copied.state_dict()[name]) for name, value in before.items())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert module._trainer is None


def test_no_fit_starts_without_training_data() -> None:
    class Empty(DigitsData):
        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader([])

    with pytest.raises(ValueError, match="Expected training data for Plain, but its train dataloader has no batch"):
        at_start_of_fit(Plain(), Empty(), lambda trainer, module: 0)


def test_images_are_mixed_while_training_alone() -> None:
    """A module is scored in evaluation mode, with the labels of its batches."""
    module = ImageClassifier(**NETWORK, mixup=0.8, label_smoothing=0.1)
    module.log = lambda *args, **kwargs: None  # type: ignore[method-assign,assignment]
    images, labels = torch.randn(4, 1, 8, 8), torch.arange(4)
    module.eval()
    expected = F.cross_entropy(module.model(images), labels, label_smoothing=0.1)
    torch.testing.assert_close(module.training_step((images.clone(), labels), 0), expected)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = 0.0
    assert not torch.allclose(module.train().training_step((images.clone(), labels), 0), expected)


def test_scores_are_not_in_the_plan(fair: Path) -> None:
    """A plan stays small: a checkpoint holds it."""
    evidence = json.loads((fair / "plan.json").read_text())["evidence"]
    assert not {"scores", "u_score", "r_score"} & evidence.keys()
    assert all(v.dtype == torch.float64 for v in load_file(fair / "plan.scores.safetensors").values())
