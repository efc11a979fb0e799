"""Model card: the page of a pruned model on a hub.

Metadata follow the Hugging Face hub (https://huggingface.co/docs/hub/model-cards); the rest is the report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import ModelCardData

from prunerecover.checkpoint.pruned_folder import PLAN, standard_class
from prunerecover.files.atomic import write_text
from prunerecover.files.plan_file import read_data, read_saved
from prunerecover.plan.plan import Plan
from prunerecover.report.report import Report

CARD = "README.md"
HEADING = re.compile(r"^#", re.MULTILINE)


def save_model_card(
    folder: str | Path,
    report: Report | None = None,
    *,
    base: str | None = None,
    license: str | None = None,
    datasets: Sequence[str] = (),
) -> Path:
    """Write `README.md` into a folder of `save_pruned`: loading instructions, the base model, and the removals.

    The folder is then a whole model repository: `huggingface_hub.upload_folder(folder_path=..., repo_id=...)`, and on
    the other side `load_pruned(huggingface_hub.snapshot_download(...))`.

    Args:
        folder: Folder of `save_pruned`, or the `pruned/` beside the checkpoints of a fit; the name becomes the title.
        report: Report of `compare` or of `PruneReport` (`Report.load("report")`), for the table of before and after.
            None: no table.
        base: Hub id of the dense model.
        license: Identifier on the hub, such as "apache-2.0"; the license of the base weights applies to the pruned
            weights.
        datasets: Hub ids of the data sets of training and recovery.

    Returns:
        The path of the card.

    Raises:
        FileNotFoundError: If the folder holds no pruned model.
        FileExistsError: If the folder has a `README.md` from another source.
    """
    folder = Path(folder)
    if not (folder / PLAN).is_file():
        raise FileNotFoundError(f"Expected a folder of save_pruned, but {folder} has no {PLAN}. Is it the right one?")
    path, data = folder / CARD, _metadata(base, license, datasets)
    if path.exists() and "library_name: prunerecover" not in path.read_text(encoding="utf-8"):
        raise FileExistsError(f"Expected no {CARD} of somebody else in {folder}, but there is one. Move it away first.")
    write_text(path, f"---\n{data}\n---\n\n{_body(folder, report, base)}")
    return path


def _metadata(base: str | None, license: str | None, datasets: Sequence[str]) -> str:
    data = ModelCardData(
        base_model=base,
        license=license,
        datasets=list(datasets) or None,
        library_name="prunerecover",
        tags=["pruning", "prunerecover"],
    )
    return data.to_yaml().strip()


def _body(folder: Path, report: Report | None, base: str | None) -> str:
    plan = Plan.load(folder / PLAN)
    origin = f"[`{base}`](https://huggingface.co/{base})" if base else f"a `{plan.source.class_.rpartition('.')[2]}`"
    parts = [
        f"# {folder.resolve().name}",
        f"{origin}, pruned: {plan.result.params:,} parameters are left. It is an ordinary network, which trains, "
        "exports and quantises like any other.",
        f"## How to load it\n\n```python\n{_load(folder, plan)}\n```",
    ]
    if report is not None:
        parts.append(HEADING.sub("##", report.to_markdown()).strip())
    return "\n\n".join(parts) + "\n"


def _load(folder: Path, plan: Plan) -> str:
    """Return the lines of code to load the model."""
    if cls := standard_class(folder):
        return f'from transformers import {cls}\n\nmodel = {cls}.from_pretrained("hub-id")'
    needs_dense = plan.source.constructor is None or read_saved(read_data(folder / PLAN)).target != ""
    dense = "model=dense" if needs_dense else ""
    return (
        "from huggingface_hub import snapshot_download\n\n"
        "from prunerecover import load_pruned\n\n"
        + ("dense = ...  # built as before it was pruned; its weights do not matter\n" if needs_dense else "")
        + f'model = load_pruned(snapshot_download("hub-id"){dense and ", "}{dense})'
    )
