"""Prompt-routed depth: several sets of removed blocks over one set of weights, and what picks one for a prompt."""
