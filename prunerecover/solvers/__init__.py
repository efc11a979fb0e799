"""Solvers: the choice of a variant for each site under a budget."""
