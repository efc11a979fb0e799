"""Saving and opening of pruned networks: folders, Lightning checkpoints, weights files."""
