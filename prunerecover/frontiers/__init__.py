"""Frontier of a network: divergence and costs of plans for many budgets."""
