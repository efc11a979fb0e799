"""The frontier of a network: what other budgets would cost in divergence and in every cost."""
