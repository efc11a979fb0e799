"""Modules that are rewritten before their units can go: padded shortcuts, and attentions whose code fixes sizes."""
