"""The version of the package, in a module below all modules that record it."""

__version__ = "0.1.0"
