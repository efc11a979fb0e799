"""The plain command `report`: it reads what a run has written and needs no trainer."""

from __future__ import annotations

from pathlib import Path


def show_report(path: str) -> None:
    """Print a saved report as Markdown, rendered for the terminal.

    Args:
        path: A `report.json`, or the folder that holds one.

    Raises:
        ValueError: If there is no such file, or it is no report.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from prunerecover.report.report import Report

    if not Path(path).exists():
        raise ValueError(f"Expected a report at {path}, but there is none. `prunerecover quickstart` writes one.")
    Console().print(Markdown(Report.load(path).to_markdown()))
