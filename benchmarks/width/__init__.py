"""Width pruning against published methods."""
