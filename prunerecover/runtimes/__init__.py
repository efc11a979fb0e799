"""Runtimes: export of networks, and clocks in the exported networks' runtime."""
