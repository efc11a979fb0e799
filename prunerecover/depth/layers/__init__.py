"""Prune single layers: what goes with a layer, how widths are made to fit, and what its place then holds."""
