"""Reconstruction of the blocks of a pruned network, one after the other."""
