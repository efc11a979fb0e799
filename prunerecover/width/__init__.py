"""Prune channels, heads, neurons and experts."""
