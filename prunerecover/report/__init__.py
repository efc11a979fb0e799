"""Reports: comparison of a network before and after pruning, in writing."""
