"""Names of costs, and amounts with units."""
