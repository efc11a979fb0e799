"""Language models with blocks removed, and the cost of the search."""
