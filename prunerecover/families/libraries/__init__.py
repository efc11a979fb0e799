"""Constructors of rebuildable models from plain data, one file per library."""
