"""What `prunerecover plan --method` can name."""
