"""Dimensions of tensors in a forward pass: tied indices, and the dimensions of samples."""
