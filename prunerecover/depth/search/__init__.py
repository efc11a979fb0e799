"""Search for removed units: goals, and the sets of units that reach a goal at the least divergence."""
