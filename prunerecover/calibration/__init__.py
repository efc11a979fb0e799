"""Fit what removed units leave on unlabelled samples, and judge it by the output of the whole network."""
