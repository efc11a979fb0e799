"""The split between attentions and activations."""
