"""Depth pruning."""
