"""Forwards of single modules, rewritten without some calls."""
