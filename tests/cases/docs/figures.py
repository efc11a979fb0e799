"""Figures of a document, looked up in the linked page of results."""

from __future__ import annotations

import re

FIGURE = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
MAGNITUDES = {"": 1.0, " M": 1e6, " G": 1e9}


def is_stated(figure: str, page: str) -> bool:
    """Whether a page has a number equal to a figure after rounding; the figure may end in M or G."""
    number, magnitude = figure.rstrip(" MG"), MAGNITUDES[figure.lstrip("-0123456789.,")]
    digits = len(number.partition(".")[2])
    known = (float(match.replace(",", "")) / magnitude for match in FIGURE.findall(page))
    return number in {f"{value:.{digits}f}" for value in known}
