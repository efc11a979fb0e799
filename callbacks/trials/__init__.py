"""Short runs of pruned models inside nested Trainers."""
