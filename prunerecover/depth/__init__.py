"""Prune blocks, attentions, MLPs and activations."""
