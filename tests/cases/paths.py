"""Paths of the tests and the project, for tests with files or processes."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
