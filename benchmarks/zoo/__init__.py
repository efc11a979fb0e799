"""Pruning on networks of all kinds, in width and in depth."""
