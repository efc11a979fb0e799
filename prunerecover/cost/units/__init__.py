"""Names of costs, and amounts of them in units."""
