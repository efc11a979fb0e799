"""Solvers: which variant of each site a budget takes."""
