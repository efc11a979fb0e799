"""Divergences: how far a network's outputs are from the dense one's, each kind of output in its own terms."""
