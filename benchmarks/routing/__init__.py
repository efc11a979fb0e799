"""Prompt-routed depth, and adapters shared by all routes."""
