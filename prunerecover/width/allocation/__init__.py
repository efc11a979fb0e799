"""Allocations: the number of removed units of every group for a budget or a tolerance."""
