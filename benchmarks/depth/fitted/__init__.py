"""Depth with something fitted in the place of units, on the graph."""
