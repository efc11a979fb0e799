"""Paths of the tests and the project, for tests that read files or start processes."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
