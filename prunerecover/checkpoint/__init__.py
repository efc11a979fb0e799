"""Save pruned networks, and open them again: folders, Lightning checkpoints, weights files."""
