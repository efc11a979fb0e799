"""Plan methods for `prunerecover plan --method`."""
