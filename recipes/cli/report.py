"""Command `report`: a saved report on the terminal, without a trainer."""

from __future__ import annotations

from pathlib import Path


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
