"""Prompt-routed depth: several sets of removed blocks over shared weights, and routers to choose a set for a prompt."""
