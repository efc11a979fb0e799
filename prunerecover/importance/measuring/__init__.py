"""What importances are computed from: losses, activations, calls of experts, slices of tensors."""
