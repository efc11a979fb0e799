"""Plan methods that `prunerecover plan --method` can name."""
