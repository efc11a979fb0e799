"""Width pruning beside its peers."""
