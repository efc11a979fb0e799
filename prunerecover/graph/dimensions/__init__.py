"""Dimensions of tensors in one forward pass: which of their indices it ties together, and where samples lie."""
