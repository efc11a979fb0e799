"""The page, the figure and the scores that `prunerecover plan` writes beside a plan in width."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_mixture
from cases.width.command_line import FAIR, dense, run
from cases.width.scores import removable
from matplotlib.figure import Figure
from safetensors.torch import load_file

from prunerecover import Plan, apply_plan
from prunerecover.recipes.plan_methods import width as width_plan
from prunerecover.recipes.plan_methods.width import FairPrunerPlan
from prunerecover.session.session import Session
from prunerecover.width.allocator import WidthAllocator


@pytest.fixture(scope="module")
def fair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fair")
    run(folder, *FAIR)
    return folder


def cells(page: str, first: str) -> list[list[str]]:
    """Return the rows of the table whose header begins with `first`."""
    lines = page.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |")) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip(" `") for cell in line.strip("|").split("|")])
    return rows


@pytest.mark.slow
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
    assert f"a score of {exchange['taken']:.3g}" in page
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


def test_rankings_of_strata_are_those_in_which_experts_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removed experts are left of the line in the figure."""
    ids = [torch.randint(3, 61, (4, 9), generator=torch.Generator().manual_seed(i)) for i in range(4)]
    batches = [{"input_ids": rows, "labels": rows} for rows in ids]
    method = FairPrunerPlan(remove={"expert": 8}, importance=("random", "gate_taylor"), replace="zero")
    config = dataclasses.replace(method.config, kinds=("expert",))
    planner = WidthAllocator(Session(tiny_mixture("deepseek_v3"), batches), config)
    plan = method._plan(planner)
    drawn: list[Any] = []
    monkeypatch.setattr(width_plan, "plot_rankings", lambda *args, **names: drawn.append(args) or Figure())
    search = {"seconds": 1.0, "peak_memory_bytes": 0}
    method.write(plan.model_copy(update={"evidence": {**plan.evidence, "search": search}}), tmp_path / "plan.json")
    assert re.search("(At|Not comparable:) the same number of parameters", (tmp_path / "plan.md").read_text())
    ((_, order, _),) = drawn
    for edit in plan.edits:
        assert order[edit.unit].argsort()[: len(edit.gone)].sort().values.tolist() == list(edit.gone)
