"""Pruned networks in the runtimes of phones and other small devices."""
