"""A fit's report in loggers that show text, tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from prunerecover.report.render import HEADER, rows
from prunerecover.report.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT = "prune_report"


def log_report(logger: Logger, report: Report, figures: Mapping[str, Figure], step: int) -> None:
    """Show a report and its figures in a logger; loggers of numbers alone are told at each surgery.

    TensorBoard shows the report as text and the figures as images, Weights & Biases shows the table of before and after
    and the figures, and a CSV logger's folder gets the report's files.

    Args:
        logger: Logger of the trainer.
        report: Report of the fit.
        figures: Figures by name.
        step: Step of the entry in the log.
    """
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.add_text(REPORT, report.to_markdown(), step)
        for name, figure in figures.items():
            logger.experiment.add_figure(f"{REPORT}/{name}", figure, step, close=False)
    elif isinstance(logger, WandbLogger):
        logger.log_table(f"{REPORT}/before_and_after", columns=list(HEADER), data=[list(row) for row in rows(report)])
        for name, figure in figures.items():
            logger.log_image(f"{REPORT}/{name}", [figure])
    elif isinstance(logger, CSVLogger):
        report.save(Path(logger.log_dir) / REPORT, figures=figures)
