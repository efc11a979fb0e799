"""Prompt-routed depth, and adapters that all routes share."""
