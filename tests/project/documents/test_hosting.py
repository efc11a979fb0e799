"""Files for a host of the repository: the workflow runs the project's own checks, and templates are complete."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from cases.paths import ROOT

WORKFLOW = (ROOT / ".github/workflows/ci.yml").read_text()
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))


def test_the_workflow_runs_the_checks_of_the_project() -> None:
    jobs = yaml.safe_load(WORKFLOW)["jobs"]
    commands = [step["run"].split()[0] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert [command for command in commands if command != "pip"] == [".ci/check", ".ci/run"]
    assert all(os.access(ROOT / command, os.X_OK) for command in commands if command != "pip")


def test_the_workflow_names_no_registry_and_no_machine() -> None:
    assert re.findall(r"https?://|--index|index-url|/home/|/work/|/root/", WORKFLOW) == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_an_issue_template_asks_for_something(path: Path) -> None:
    template = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= template.keys()
    assert any(part.get("validations", {}).get("required") for part in template["body"])
