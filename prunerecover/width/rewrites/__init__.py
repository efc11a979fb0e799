"""Rewrites of padded shortcuts as convolutions, before their channels can be removed."""
