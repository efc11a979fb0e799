"""Dimensions of tensors in a forward pass, seen by watching: tied indices, and the dimensions of samples."""
