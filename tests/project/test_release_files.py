"""The release files of a pruned model: the card's instructions work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from cases.paths import ROOT
from transformers import AutoModelForCausalLM, AutoTokenizer

from prunerecover import load_pruned
from prunerecover.files.hashes import sha256_of

pytestmark = pytest.mark.data
NAME = "stories260k-four-blocks"


@pytest.fixture(scope="module")
def release(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the command makes of the smallest model."""
    folder = tmp_path_factory.mktemp("release")
    command = [sys.executable, "-m", "benchmarks.project.release_files", "--output", str(folder), "--models", NAME]
    subprocess.run([*command, "--samples", "8", "--license", "mit"], check=True, cwd=ROOT, timeout=500)
    return folder / NAME


def test_the_model_opens_as_the_card_says(release: Path, data_root: Path) -> None:
    card = (release / "README.md").read_text()
    assert "license: mit" in card
    assert "LlamaForCausalLM.from_pretrained" in card
    assert re.search(r"loss per token .*\d\.\d+", card)
    model = AutoModelForCausalLM.from_pretrained(release)
    assert len(model.model.layers) == len(load_pruned(release).model.layers) == 4
    ids = AutoTokenizer.from_pretrained(release)("Once upon a time", return_tensors="pt")["input_ids"]
    assert (
        ids.tolist()
        == AutoTokenizer.from_pretrained(data_root / "models" / "stories260K")("Once upon a time", return_tensors="pt")[
            "input_ids"
        ].tolist()
    )


def test_the_checksums_are_those_of_all_files(release: Path) -> None:
    lines = (line.split("  ") for line in (release / "SHA256SUMS").read_text().splitlines())
    said = {name: checksum for checksum, name in lines}
    assert said == {file.name: sha256_of(file) for file in release.iterdir() if file.name != "SHA256SUMS"}
