"""Forwards of single modules, rewritten without some of their calls."""
