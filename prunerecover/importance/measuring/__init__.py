"""Ingredients of importances: losses, activations, calls of experts, slices of tensors."""
