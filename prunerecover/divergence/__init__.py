"""Divergences: distances between outputs of a network and of the dense network, by kind of output."""
