"""Runtimes: export of networks, and clocks that time them where they will run."""
