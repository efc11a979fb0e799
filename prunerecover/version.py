"""The version of the package: in one place, below everything that records it."""

__version__ = "0.1.0"
