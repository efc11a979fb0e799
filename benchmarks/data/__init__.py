"""Real data and weights, and how results are written."""
